"""`pagewire bench report`, and `bench serve --report`: runs of load as one page that needs nothing beside it."""
