"""Tell people, once. `episodes` decides what is worth telling, `sinks` tells it, `notify` loses nothing in between."""
