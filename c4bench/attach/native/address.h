/* NICs are known by their addresses. */
#pragma once

#include <arpa/inet.h>
#include <infiniband/verbs.h>

enum { ADDRESS_BYTES = INET6_ADDRSTRLEN };

/* The address of a GID as text, IPv4 where it is one. */
static inline void address_of(const union ibv_gid *gid, char text[ADDRESS_BYTES])
{
	const struct in6_addr *address = (const void *)gid->raw;
	int mapped = IN6_IS_ADDR_V4MAPPED(address);

	inet_ntop(mapped ? AF_INET : AF_INET6, gid->raw + (mapped ? 12 : 0), text, ADDRESS_BYTES);
}
