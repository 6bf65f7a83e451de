"""What `kinoray new` writes, as files that run, are linted and typed: `my_method` stands for the name."""
