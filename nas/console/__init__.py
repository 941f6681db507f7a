"""The command `nas` (`app`, `commands`), and what commands share, those of other packages too."""
