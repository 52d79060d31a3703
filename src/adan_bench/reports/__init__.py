"""Pages, Markdown and figures, written from records alone; nothing here trains or imports torch."""
