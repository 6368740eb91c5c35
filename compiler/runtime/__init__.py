"""Build, load and launch compiled text, given source and launch geometry; nothing here depends on an IR."""
