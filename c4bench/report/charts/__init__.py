"""Charts: each module draws one kind of artefact as SVG. Colours are the page's CSS classes."""
