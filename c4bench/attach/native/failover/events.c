/* What a program learns of its NICs: a failed port is none while its twin goes on in its place. */
#include "../real.h"
#include "next.h"
#include "nics.h"

#include <errno.h>
#include <string.h>

static int is_withheld(const struct nic *nic, enum ibv_event_type type)
{
	return !in_child && !nic->down[TWIN] && (type == IBV_EVENT_PORT_ERR || type == IBV_EVENT_PORT_ACTIVE);
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	NEXT(ibv_get_async_event, -1);
	void (*acknowledge)(struct ibv_async_event *) = (void (*)(struct ibv_async_event *))bare_verbs("ibv_ack_async_event");
	const struct nic *nic = nic_of(context);
	int failed;

	while (!(failed = next(context, event)) && nic && acknowledge && is_withheld(nic, event->event_type))
		acknowledge(event);
	return failed;
}
