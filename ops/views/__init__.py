"""Views: frozen values turned into text, JSON and pictures. Nothing here reads or touches the world."""
