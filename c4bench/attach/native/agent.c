/* Each message is a line of JSON (attach/server.py has the other end). The connection stays open while the process lives, so
   that the agent sees it end. */
#define _GNU_SOURCE
#include "agent.h"

#include "address.h"
#include "move.h"
#include "qp.h"
#include "ring.h"
#include "say.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { LINE_BYTES = 16 << 10, ANSWER_MS = 500, NONE = -1, RECALLED_AT_ONCE = 64 };
static const uint64_t ABSENT_NS = 1000000000u, WELCOME_NS = 1000000000u, KEEP_NS = 100000000u, SILENT_NS = 60000000000u, MS_NS = 1000000;

struct line {
	char text[LINE_BYTES];
	size_t length;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int connection = NONE;
static pid_t connected; /* the process that has the connection */
static struct line incoming; /* what it has sent and nobody has read */
static int unheard; /* whether the agent has not answered the introduction yet */
static uint64_t introduced_ns, not_before_ns;
static unsigned int agents; /* met so far; the last one is told of what others have planned, up to this place */
static size_t recalled;

extern char **environ;

static const char *path(void)
{
	const char *given = getenv("C4BENCH_ATTACH_SOCKET");

	return given ? given : "/run/c4bench/attach.sock";
}

static void add(struct line *line, const char *text)
{
	size_t length = strlen(text);

	if (line->length + length >= LINE_BYTES)
		return;
	memcpy(line->text + line->length, text, length + 1);
	line->length += length;
}

/* A string of JSON; bytes that are not printable ASCII become question marks. */
static void add_string(struct line *line, const char *text, size_t length)
{
	char escaped[3] = "\\";

	add(line, "\"");
	for (size_t i = 0; i < length; i++) {
		escaped[1] = text[i] >= ' ' && text[i] < 127 ? text[i] : '?';
		add(line, escaped[1] == '"' || escaped[1] == '\\' ? escaped : escaped + 1);
	}
	add(line, "\"");
}

/* Whether a variable, `NAME=value`, may say which job and rank a process belongs to. */
static int tells_who(const char *variable)
{
	static const char *const beginnings[] = {
		"SLURM_", "PMIX_", "OMPI_", "PMI_", "MPI_", "MASTER_", "C4BENCH_", "RANK=", "WORLD_SIZE=", "LOCAL_RANK=",
		"LOCAL_WORLD_SIZE=", "JOB_COMPLETION_INDEX=", "JOB_NAME=", "POD_NAME=", "HOSTNAME=", "TORCHELASTIC_RUN_ID=",
		"PALS_RANKID=",
	};

	for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++)
		if (!strncmp(variable, beginnings[i], strlen(beginnings[i])))
			return strchr(variable, '=') != NULL;
	return 0;
}

static void add_environment(struct line *line)
{
	const char *between = "";

	for (char **variable = environ; variable && *variable; variable++) {
		const char *value = strchr(*variable, '=');
		if (!tells_who(*variable) || line->length + 2 * strlen(*variable) + 16 > LINE_BYTES)
			continue;
		add(line, between);
		add_string(line, *variable, (size_t)(value - *variable));
		add(line, ":");
		add_string(line, value + 1, strlen(value + 1));
		between = ",";
	}
}

static void hang_up(uint64_t pause_ns)
{
	close(connection);
	connection = NONE;
	incoming.length = 0;
	not_before_ns = now_ns() + pause_ns;
}

/* Send a line. Returns 0 where that failed: then there is no connection any more. */
static int tell(struct line *line)
{
	add(line, "\n");
	if (send(connection, line->text, line->length, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)line->length)
		return 1;
	hang_up(ABSENT_NS);
	return 0;
}

static int64_t number_in(const struct line *line, const char *name, int64_t most)
{
	const char *at = strstr(line->text, name);
	char *end;

	if (!at)
		return NO_ANSWER;
	at += strlen(name);
	at += strspn(at, " :");
	long long number = strtoll(at, &end, 10);
	return end != at && number >= 0 && number <= most ? number : NO_ANSWER;
}

/* Receive what the agent has sent. Returns 0 where it has gone: then there is no connection any more. */
static int receive(uint64_t pause_ns)
{
	ssize_t got = recv(connection, incoming.text + incoming.length, LINE_BYTES - 1 - incoming.length, MSG_DONTWAIT);

	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return 1;
	if (got <= 0) {
		hang_up(pause_ns);
		return 0;
	}
	incoming.length += (size_t)got;
	return 1;
}

/* Take the next whole line, if there is one. */
static int take_line(struct line *line)
{
	const char *end = memchr(incoming.text, '\n', incoming.length);

	if (!end)
		return 0;
	line->length = (size_t)(end - incoming.text) + 1;
	memcpy(line->text, incoming.text, line->length);
	line->text[line->length] = 0;
	incoming.length -= line->length;
	memmove(incoming.text, incoming.text + line->length, incoming.length);
	return 1;
}

static void report(unsigned int device, uint32_t number, uint32_t label, int refused)
{
	struct line line = {.length = 0};
	char text[128];

	snprintf(text, sizeof text, "{\"moved\":%u,\"device\":%u,\"label\":%u,\"refused\":%d}", number, device, label, refused);
	add(&line, text);
	tell(&line);
}

/* Note what the agent wants elsewhere. Returns whether the line is of that kind. */
static int is_wish(const struct line *line)
{
	int64_t number = number_in(line, "\"move\"", UINT32_MAX), device = number_in(line, "\"device\"", UINT32_MAX);
	int64_t label = number_in(line, "\"label\"", IB_GRH_FLOWLABEL_MASK);

	if (!strstr(line->text, "\"move\""))
		return 0;
	if (number >= 0 && device >= 0 && label >= 0 && !move_want((unsigned int)device, (uint32_t)number, (uint32_t)label))
		report((unsigned int)device, (uint32_t)number, 0, 0);
	return 1;
}

/* Take the next answer, if there is one. */
static int take_answer(struct line *line)
{
	while (take_line(line))
		if (!is_wish(line))
			return 1;
	return 0;
}

/* Wait for an answer. Returns 0 where none came: then there is no connection any more, and a late answer is lost. */
static int hear(struct line *line)
{
	uint64_t deadline_ns = now_ns() + ANSWER_MS * MS_NS, now;
	struct pollfd wait = {.fd = connection, .events = POLLIN};

	while ((now = now_ns()) < deadline_ns) {
		int found = poll(&wait, 1, (int)((deadline_ns - now + MS_NS - 1) / MS_NS));
		if (found < 0 && errno == EINTR)
			continue;
		if (found <= 0)
			break;
		if (!receive(ABSENT_NS))
			return 0;
		if (take_answer(line))
			return 1;
	}
	say("the agent at %s has not answered within %d ms: paths are as without it", path(), ANSWER_MS);
	hang_up(SILENT_NS);
	return 0;
}

static int introduce(void)
{
	struct line line = {.length = 0};

	agents++;
	recalled = 0;
	const char *records = ring_name();

	add(&line, "{\"ring\":");
	add_string(&line, records, strlen(records));
	add(&line, ",\"environment\":{");
	add_environment(&line);
	add(&line, "}}");
	unheard = 1;
	introduced_ns = now_ns();
	return tell(&line);
}

/* What the agent says to the introduction. Returns 0 where it refuses this process. */
static int welcome(const struct line *line)
{
	unheard = 0;
	if (strstr(line->text, "\"error\"")) {
		say("the agent at %s refuses this process: %.*s", path(), (int)line->length - 1, line->text);
		hang_up(SILENT_NS);
		return 0;
	}
	return 1;
}

static int reach(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int length = snprintf(address.sun_path, sizeof address.sun_path, "%s", path());

	connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	connected = getpid();
	if (connection == NONE)
		return 0;
	if (length >= (int)sizeof address.sun_path || connect(connection, (struct sockaddr *)&address, sizeof address)) {
		if (*ring_name()) /* what else is missing has been said */
			say("no agent at %s: %s; paths are as without it", path(), strerror(errno));
		hang_up(ABSENT_NS);
		return 0;
	}
	return introduce();
}

/* A child must not speak for its parent. Its end of the connection is its own to close. */
static int ready(void)
{
	if (connection != NONE && connected != getpid()) {
		close(connection);
		connection = NONE;
		incoming.length = 0;
	}
	return connection != NONE || (now_ns() >= not_before_ns && reach());
}

/* Send a question about a connection, or, with the label that it has from another agent, that it has that. */
static int describe(const struct connection *about, const char *label)
{
	struct line line = {.length = 0};
	char source[ADDRESS_BYTES], destination[ADDRESS_BYTES], text[256];

	address_of(&about->local, source);
	address_of(&about->remote, destination);
	snprintf(text, sizeof text,
		 "{\"source\":\"%s\",\"destination\":\"%s\",\"qp\":%u,\"remote_qp\":%u,\"device\":%u%s}", source,
		 destination, about->number, about->remote_number, about->device, label);
	add(&line, text);
	return tell(&line);
}

/* Tell the agent which queue pairs are on paths that others have planned; the rest next time. */
static void recall(void)
{
	struct qp *qp;

	for (int lines = 0; lines < RECALLED_AT_ONCE && (qp = qp_after(&recalled));) {
		struct attributes *kept = &qp->attributes;
		struct connection about = {qp->device->number, qp->number, kept->remote_number, kept->local, kept->address.grh.dgid};
		char label[32];
		if (kept->agent == agents || kept->label == kept->asked_label)
			continue;
		snprintf(label, sizeof label, ",\"label\":%u", kept->label);
		if (!describe(&about, label))
			return;
		kept->agent = agents;
		lines++;
	}
}

static struct advice ask(const struct connection *about)
{
	struct advice nothing = {0, NO_ANSWER, NO_ANSWER, NO_ANSWER};
	struct line line = {.length = 0};

	if (!ready() || (unheard && !(hear(&line) && welcome(&line))))
		return nothing;
	if (!describe(about, "") || !hear(&line))
		return nothing;
	return (struct advice){
		agents,
		number_in(&line, "\"label\"", IB_GRH_FLOWLABEL_MASK),
		number_in(&line, "\"timeout\"", 31),
		number_in(&line, "\"retries\"", 7),
	};
}

/* Notice that the agent has gone, and introduce this process to one that has come. It has a second to answer, for which
   nobody waits. */
static void keep(void)
{
	struct line line;

	if (connection == NONE || connected != getpid()) {
		ready();
	} else if (!receive(0)) {
		ready();
	} else if (take_answer(&line) && unheard) {
		welcome(&line);
	} else if (unheard && now_ns() > introduced_ns + WELCOME_NS) {
		hang_up(SILENT_NS);
	} else if (!unheard) {
		recall();
	}
}

void agent_keep(uint64_t now)
{
	static uint64_t kept_ns;

	if (now < kept_ns + KEEP_NS || pthread_mutex_trylock(&lock))
		return;
	int before = errno;
	kept_ns = now;
	keep();
	errno = before;
	pthread_mutex_unlock(&lock);
}

/* For the libraries that record operations: a program's connections may be none of RDMA. */
void c4bench_attach_process(uint64_t now)
{
	if (ring_ready())
		agent_keep(now);
}

static void in_child(void)
{
	pthread_mutex_init(&lock, NULL);
}

struct advice agent_advise(const struct connection *about)
{
	static int registered;

	pthread_mutex_lock(&lock);
	if (!registered++)
		pthread_atfork(NULL, NULL, in_child);
	struct advice advice = ask(about);
	pthread_mutex_unlock(&lock);
	return advice;
}

void agent_moved(unsigned int device, uint32_t number, uint32_t label, int refused)
{
	pthread_mutex_lock(&lock);
	if (connection != NONE && connected == getpid())
		report(device, number, label, refused);
	pthread_mutex_unlock(&lock);
}
