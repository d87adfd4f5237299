"""An operator's wishes, one file each: frozen dataclasses whose actions are pure functions of a snapshot."""
