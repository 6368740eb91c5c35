"""Source text and launch geometry in, running code out: build, cache, load, launch, measure."""
