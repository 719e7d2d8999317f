"""One module a figure; each turns an artefact into SVG. Colours are the page's CSS classes."""
