"""An operator's wishes, one file each: frozen structs whose actions are pure functions of a snapshot."""
