"""`oncemq auth`: users, tokens, rules and keys of a broker."""
