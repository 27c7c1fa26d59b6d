-- What a run waits for, for one that ends while it waits.

CREATE INDEX need_waiter ON need (waiter);
