"""Who gets in: keys, certificates, the origins of web pages, and a door that a drain closes."""
