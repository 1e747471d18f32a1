"""What commands share: options, output, help, signals."""
