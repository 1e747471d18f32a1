"""Records of what a client put and consumed, for an audit. An observer of the core and the consumers."""
