"""The command line. One file per group of commands; a command imports what it needs when it runs, so that
`oncemq --help` and completion are quick."""
