"""The tables of a broker and how they are kept: topics, groups, offsets, clients, locks."""
