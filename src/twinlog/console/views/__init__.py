"""What each page shows and does: values out of `twinlog.admin`, in a form that JSON has too."""
