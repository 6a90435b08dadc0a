"""Models as data plus pure functions: configuration, array descriptions, rotary tables, decoder."""
