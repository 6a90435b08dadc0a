"""The `paxkv` command, one module per subcommand."""
