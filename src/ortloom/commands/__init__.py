"""The subcommands of `ortloom`; each module is imported only when its command runs."""
