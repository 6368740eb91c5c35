"""How fast: cases timed beside their rivals, and the limits of the machine."""
