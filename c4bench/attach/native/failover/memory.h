/* Protection domains and registered memory, each with its twin. */
#pragma once

#include "nics.h"

#pragma GCC visibility push(hidden)

/* The twin of a protection domain; NULL where it has none. */
struct ibv_pd *memory_twin_of(struct ibv_pd *pd);

/* The keys of the twin's registration of what has these keys at a NIC. Return 0 where it has none. */
int memory_local_key(const struct nic *nic, uint32_t key, uint32_t *twin);
int memory_remote_key(const struct nic *nic, uint32_t key, uint32_t *twin);

#pragma GCC visibility pop
