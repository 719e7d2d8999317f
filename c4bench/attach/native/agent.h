/* Asking the agent of this host, over its UNIX socket, which path a new connection takes. */
#pragma once

#include <infiniband/verbs.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

enum { NO_ANSWER = -1 };

/* What the agent wants of a connection; NO_ANSWER where the program's own choice stands. */
struct advice {
	int64_t label;   /* GRH flow label */
	int64_t timeout; /* verbs' numbers */
	int64_t retries;
};

/* Ask about the connection from `local` to `remote`. Takes half a second at most, and no time where there is no agent. */
struct advice agent_advise(const union ibv_gid *local, uint32_t number, const union ibv_gid *remote, uint32_t remote_number);

/* Have an agent that has come later know this process. Does that once a second, and little else. */
void agent_keep(uint64_t now);

#pragma GCC visibility pop
