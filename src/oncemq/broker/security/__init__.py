"""Who may do what: authentication, authorisation, quotas and the audit log of a broker. auth/ has users and rules."""
