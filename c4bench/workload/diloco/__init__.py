"""Streaming DiLoCo (Douillard et al., arXiv 2501.18512): training at several sites that synchronise seldom."""
