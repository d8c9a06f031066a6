"""The command line: flags made from the config structs."""
