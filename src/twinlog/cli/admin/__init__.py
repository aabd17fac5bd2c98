"""The commands for people: `twinlog topic|group|message|dlq|cluster|broker|ha|context ...`.

`session` says which cluster and who asks, `options` adds the flags that all of them share, and each
other module is one noun. They print what `twinlog.admin` returns.
"""
