# Everything starts from the distribution's own Python, because its pyverbs matches its rdma-core.
PYTHON   ?= /usr/bin/python3
# Where the environment forbids it, each pytest would rewrite the assertions of every module anew.
unexport PYTHONDONTWRITEBYTECODE
VENV     := .venv
BIN      := $(VENV)/bin
PIP      := $(BIN)/pip --disable-pip-version-check
LOCK     := requirements.lock
LOCKER   := uv==0.13.9
RING     := collective/test_bandwidth.py
MAIN     := $(addprefix tests/scenarios/,c4d/test_faults.py c4p/test_plan.py \
              $(RING)::test_ring_is_exact_and_at_line_rate $(RING)::test_corrupted_element_is_noticed \
              hosts/test_deploy.py)
# Scenarios that judge c4bench itself, and are not in the wheel.
GRADING  := tests/scenarios/grading
CAMPAIGN := $(GRADING)/test_campaign.py
BUSY_CAMPAIGN := $(GRADING)/test_busy_campaign.py::test_busy_campaign
BUSY_SOAK     := $(GRADING)/test_busy_soak.py
BUSY_FABRICS  := $(wildcard $(GRADING)/busy/*.yml)
HEALTHY  := $(GRADING)/test_fabrics.py
OVERSUBSCRIBED := tests/scenarios/c4d/oversubscribed.yml
# Enough for what one host, NIC, link or program does.
FOUR     := tests/drills/four.yml
TRIAL    := tests/scenarios/resilient/test_trials.py::test_nic_dies_in_mid_operation
# What each test run selects: `make night` runs what is marked `nightly`.
MARKED    = not nightly
LAB       = $(NICE) $(BIN)/pytest --hosts softroce -m "$(MARKED)"
# Runs a command, and says beside its limits what it took.
TIMED     = $(BIN)/python tests/timed.py
# On this machine, with the directory of a run and nothing else that hosts have.
HERE      = $(BIN)/pytest --hosts=tests/mutants/here.yml --c4-reserve=0
# What the environment is made with; `c4bench setup` sees to everything else.
PACKAGES := python3-venv git
MISSING   = $(shell dpkg-query -W -f='$${Package} $${Status}\n' $(PACKAGES) 2>/dev/null \
              | awk '/ok installed/ {have[$$1]} END {n = split("$(PACKAGES)", want, " "); \
                     for (i = 1; i <= n; i++) if (!(want[i] in have)) printf "%s ", want[i]}')

SETUP     = setup
# When a set-up from nothing began; empty where there is an environment already.
BEGAN    := $(if $(wildcard $(VENV)/.ready),,$(shell date +%s.%N))

# Each runs in its own lab, which uses one processor.
SCENARIOS := detection fabric hosts resilience sites
# Three that may run side by side: attacks, drills that boot labs, and those on hosts made of namespaces.
DRILLS    := drills-attacks drills-labs drills-hosts
LAB_DRILLS := $(patsubst %,tests/drills/test_%.py,exhaust kernel_setup kill_lab lab lab_playbooks lab_setup master_restart \
              path_service pytest_in_lab replay sprayed_packets trial_history workload_run)
# Each scenario of `make test` twice, for ten seeds: this takes many hours.
REPLAYS   := tests/drills/test_replay.py::test_every_scenario_replays
# What `make night` runs, the parts that take hours last.
NIGHT     ?= unit-nightly properties commands browser-nightly evidence drills-nightly scenarios-nightly accuracy ablation \
             mutants fuzz busy soak fabrics twin every-topology replays

.PHONY: setup packages venv lock kernel lab test night lint type unit unit-nightly properties mutants scenarios \
        scenarios-nightly drills drills-nightly replays fuzz ablation accuracy busy campaigns soak fabrics twin every-topology \
        evidence bench browser browser-nightly commands docs report figures attached walks doctor clean $(SCENARIOS) $(DRILLS)

setup: kernel

packages:
	@missing="$(MISSING)"; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" != 0 ]; then \
	  echo "c4bench: install these first: apt-get install --no-install-recommends $$missing" >&2; exit 3; \
	fi; \
	echo "installing $$missing"; \
	apt-get update -q >/dev/null && \
	DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $$missing >/dev/null

# A file of package versions, such as numpy==1.26.0, that are installed over the locked ones.
VERSIONS ?=
venv: $(VENV)/.ready
# Nothing is downloaded but what the lock has a hash of. Python 3.11 puts setuptools into every new environment.
$(VENV)/.ready: pyproject.toml $(LOCK) Makefile | packages
	@echo "making $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(PIP) install -q --require-hashes -r $(LOCK) || { \
	  echo "c4bench: $(LOCK) could not be installed, pip says why above;" \
	    "where the file is to blame, restore it or renew it with \`make lock\`" >&2; exit 3; }
	@$(if $(VERSIONS),$(PIP) install -q -r $(VERSIONS))
	@$(PIP) -qq uninstall -y setuptools
	@$(PIP) install -q --no-deps --no-build-isolation -e .
	@$(PIP) -q check || { echo "c4bench: $(LOCK) is older than pyproject.toml: renew it with \`make lock\`" >&2; exit 3; }
# Where the distribution has no pyverbs, the environment runs no lab, and tests that need it are skipped.
	@$(BIN)/c4bench setup --environment 2>/dev/null || \
	  echo "this environment has no pyverbs yet: \`make setup\` installs it, or says what to install"
	@touch $@

$(LOCK):
	@echo "c4bench: $@ is missing: restore it with git, or make a new one with \`make lock\`" >&2; exit 3

# The newest versions that pyproject.toml allows, the same for every Python from 3.11 on.
lock: | packages
	@tools=$$(mktemp -d) && trap 'rm -rf "$$tools"' EXIT && $(PYTHON) -m venv "$$tools" && \
	"$$tools/bin/pip" install -q --disable-pip-version-check $(LOCKER) && \
	"$$tools/bin/uv" pip compile -q --upgrade --generate-hashes --universal --python-version 3.11 \
	  --fork-strategy fewest --custom-compile-command 'make lock' \
	  --extra hosts --extra plan --group dev --group setup -o $(LOCK) pyproject.toml

kernel: venv
	@$(BIN)/c4bench setup $(BEGAN:%=--began=%)

lab: setup
	@$(TIMED) lab.main_s=210 -- $(LAB) $(MAIN)

# Three side by side: drills on hosts need a processor in time, so they begin before the unit tests, which take one for long.
# Labs have a clock of their own, and give way to what has not; the longest begin first. All is set up by then, and the time is
# without that.
test: setup
	@$(TIMED) suite.total_s=1200 suite.processor_s -- $(MAKE) --no-print-directory -j3 --output-sync=target SETUP= NICE=nice \
	  lint type drills-hosts drills-labs unit hosts fabric detection resilience sites drills-attacks

# All that is marked nightly, one part after the other; what fails holds up nothing, and is named at the end.
night: setup
	@for part in $(NIGHT); do began=$$(date +%s); \
	  if $(MAKE) --no-print-directory SETUP= $$part; then how=passed; else how=FAILED; failed=1; fi; \
	  said="$$said$$how $$part, $$(( ($$(date +%s) - began) / 60 )) min\n"; \
	done; printf "\nc4bench: the night\n$$said"; exit $${failed:-0}

lint: venv
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/ansible-lint --offline -q playbooks

type: venv
	$(BIN)/mypy

# With COVERAGE=1 the share of c4bench's lines that run is printed too; tests that compute take twice as long then.
unit: $(SETUP:setup=venv)
	@$(TIMED) unit.total_s unit.processor_s=240 -- \
	  $(if $(COVERAGE),$(BIN)/coverage run -m pytest,$(BIN)/pytest) tests/unit -m "not nightly"
	$(if $(COVERAGE),@echo "c4bench: unit tests run $$($(BIN)/coverage report --format=total) % of the lines")

# Property tests with examples that nobody has tried; those that fail are kept in .hypothesis and tried again.
properties: setup
	C4BENCH_FRESH_EXAMPLES=1 $(BIN)/pytest tests/unit -m hypothesis

# The longer forms of unit tests, for a night: a million simulated iterations are among them.
unit-nightly: venv
	$(BIN)/pytest tests/unit -m nightly

# Change a sample of places in copies of the code: the unit tests should fail. Takes half an hour on two processors.
MUTANTS ?= 300
SEED    ?= 1
mutants: venv
	C4BENCH_MUTANTS=$(MUTANTS) $(HERE) --c4-seed $(SEED) tests/mutants

# The live page in a headless Chromium, which is installed, as is Playwright, where it is missing.
browser: venv
	@command -v chromium-headless-shell >/dev/null || command -v chromium >/dev/null || { \
	  [ "$$(id -u)" = 0 ] || { echo "c4bench: install this first: apt-get install chromium-headless-shell" >&2; exit 3; }; \
	  apt-get update -q >/dev/null && \
	  apt-get install -y -q --no-install-recommends chromium-headless-shell fonts-dejavu-core >/dev/null; }
	@[ -d $(VENV)-browser/playwright ] || $(PIP) install -q --target $(VENV)-browser --group browser
	PYTHONPATH=$(VENV)-browser $(HERE) tests/browser -m "$(MARKED)"

browser-nightly: MARKED = nightly
browser-nightly: browser

# The documents as a site in dist/docs. What builds it lies apart, so that it changes no run's environment.
docs: venv
	@[ -d $(VENV)-docs/mkdocs ] || $(PIP) install -q --target $(VENV)-docs --group docs
	PYTHONPATH=$(VENV)-docs $(BIN)/python -m mkdocs build

# Every command that the documents show, also those that need a lab or a minute.
commands: setup
	$(HERE) tests/unit/docs

# 200,000 mutated inputs of a seed that is printed; CONTRIBUTING.md says how to try one again.
fuzz: $(SETUP)
	$(BIN)/pytest tests/drills/attacks/test_fuzz.py -m nightly -rP

drills: $(DRILLS)

drills-attacks: $(SETUP)
	$(BIN)/pytest tests/drills/attacks -m "not nightly"

drills-labs: $(SETUP)
	$(BIN)/pytest $(LAB_DRILLS) -m "not nightly"

drills-hosts: $(SETUP)
	$(BIN)/pytest tests/drills --ignore tests/drills/attacks $(addprefix --ignore ,$(LAB_DRILLS)) -m "not nightly"

drills-nightly: $(SETUP)
	$(BIN)/pytest tests/drills --ignore tests/drills/attacks/test_fuzz.py --deselect $(REPLAYS) -m nightly

replays: setup
	$(BIN)/pytest $(REPLAYS)

scenarios: $(SCENARIOS)

# The longer forms of scenarios, but those that other targets run: for each fabric, what has some there.
define NIGHT_LABS
clos-2x4 grading/test_campaign.py c4d/test_soak.py c4d/test_steering.py grading/test_two_faults.py c4p/test_plan.py c4p/test_programs.py c4p/test_foreign_programs.py::test_plan_beats_ecmp_under_perftest c4p/test_degraded.py c4p/test_ablation.py::test_slice collective/test_exact.py collective/test_bad_input.py lab/test_hosts.py faults attach/test_[!f]*.py attach/test_fo*.py c4p/test_hashes.py
clos-2x4 attach/test_faults_under_programs.py::test_healthy_collectives_raise_no_alarm attach/test_faults_under_programs.py::test_a_fault_under_collectives_is_named attach/test_faults_under_programs.py::test_a_clock_that_is_set_raises_no_alarm
tests/scenarios/grading/busy/leaf-spine.yml attach/test_faults_under_programs.py::test_a_healthy_perftest_raises_no_alarm attach/test_faults_under_programs.py::test_a_fault_under_perftest_is_named c4p/test_foreign_programs.py::test_queue_pairs_leave_a_link_that_fails
tests/scenarios/attach/two-nics.yml attach/test_failover.py
tests/scenarios/c4d/oversubscribed.yml c4d/test_congestion.py
tests/scenarios/faults/pausing.yml faults/test_flow_control.py resilient/test_pauses.py c4d/test_pause_storms.py
unequal-2x4 c4p/test_capacities.py
bonds-2 c4p/test_bonds.py c4p/test_within_operation.py
clos-2x4-spray c4p/test_baselines.py
clos-2x4-qp c4p/test_hashes.py c4p/test_plan.py
clos-2x4-adaptive c4p/test_hashes.py
clos-2x8 c4p/test_dynamic.py
planes-2 resilient
blocks-8 resilient
rack-2x4 faults/test_misconfigurations.py faults/test_path_witnesses.py
rack-2x4 faults/test_leases.py
sites-2 workload/test_sites.py workload/test_quality.py
sites-4 workload/test_site_faults.py
rack-2x4 lab/test_switches.py
gpu-4x4 collective/test_gpu_hosts.py resilient/test_split.py c4d/test_gpu_links.py
tests/scenarios/resilient/gpu-hosts.yml resilient/test_trials.py
gpu-2x8 collective/test_gpu_hosts.py resilient/test_models.py
endef
export NIGHT_LABS
scenarios-nightly: MARKED = nightly
scenarios-nightly: setup
	@echo "$$NIGHT_LABS" | { while read -r fabric files; do \
	  $(LAB) --c4-topology $$fabric $$(printf 'tests/scenarios/%s ' $$files) </dev/null || failed=1; \
	done; exit $${failed:-0}; }

detection: $(SETUP)
	$(LAB) tests/scenarios/c4d $(CAMPAIGN)
	$(LAB) --c4-topology $(OVERSUBSCRIBED) tests/scenarios/c4d/test_congestion.py

# Drills deploy to plain hosts, and `make lab` to those of a lab.
DEPLOYED := --ignore tests/scenarios/hosts/test_deploy.py
fabric: $(SETUP)
	$(LAB) $(addprefix tests/scenarios/,c4p collective hosts lab verbs grading/test_bandwidth_model.py) $(DEPLOYED)
	$(LAB) --c4-topology rack-2x4 tests/scenarios/lab/test_switches.py
	$(LAB) --c4-topology gpu-4x4 tests/scenarios/collective/test_gpu_hosts.py

# Faults, and programs that we did not write.
hosts: $(SETUP)
	$(LAB) --c4-topology $(FOUR) tests/scenarios/faults tests/scenarios/attach
	$(LAB) --c4-topology tests/scenarios/faults/pausing.yml tests/scenarios/faults/test_flow_control.py

# Jobs at several sites.
sites: $(SETUP)
	$(LAB) tests/scenarios/workload/test_sites.py --c4-topology sites-2
	$(LAB) tests/scenarios/workload/test_site_faults.py --c4-topology sites-4

# What files of other tools say of simulated jobs of up to 10,000 ranks. No host is needed, only the directory of a run.
evidence: venv
	$(HERE) $(GRADING)/test_foreign_files.py

# Eight hosts with two NICs. Hosts with eight are for the night.
resilience: $(SETUP)
	$(LAB) tests/scenarios/resilient --c4-topology planes-2

# What makes a run go on in the directory $(1), if it has begun there: a finished run is read-only.
RESUMED = $$([ ! -e $(1)/run.json ] || echo --c4-resume)

# Each topology has its oversubscription. Cases that its directory has are not run again.
ABLATION ?= reports/runs/ablation
ablation: setup
	@for topology in clos-2x8 clos-2x8-2to1; do run=$(ABLATION)/$$topology; mkdir -p $$run; \
	  $(BIN)/pytest --hosts softroce -m nightly tests/scenarios/c4p/test_ablation.py \
	    --c4-topology $$topology --c4-run-dir $$run $(call RESUMED,$$run) || failed=1; \
	done; exit $${failed:-0}

# The campaign of each seed, in its own run directory. Trials that the directory has are not run again. Without SEEDS it is
# tonight's: its seed is drawn from the date, its misses go to a list, and the table of docs/figures.md is of the last nights.
ACCURACY ?= reports/runs/accuracy
SEEDS    ?= $(shell $(BIN)/python -m tools campaign --seed)
NIGHTS    = --nights --misses $(ACCURACY)/misses.jsonl --readme docs/figures.md
accuracy: setup
	@for seed in $(SEEDS); do mkdir -p $(ACCURACY)/$$seed; \
	  $(BIN)/pytest --hosts softroce -m nightly $(CAMPAIGN)::test_whole_campaign --c4-seed $$seed \
	    --c4-run-dir $(ACCURACY)/$$seed $(call RESUMED,$(ACCURACY)/$$seed) \
	    || failed=1; \
	done; $(BIN)/python -m tools campaign $(ACCURACY)/*/ $(if $(filter file,$(origin SEEDS)),$(NIGHTS)) || failed=1; \
	exit $${failed:-0}

# Trials under jobs that communicate for much of their time, on each kind of fabric; seeds as for `accuracy`.
BUSY ?= reports/runs/busy
busy: setup
	@for seed in $(SEEDS); do for fabric in $(BUSY_FABRICS); do \
	  run=$(BUSY)/$$seed-$$(basename $$fabric .yml); mkdir -p $$run; \
	  $(BIN)/pytest --hosts softroce -m nightly $(BUSY_CAMPAIGN) --c4-topology $$fabric --c4-seed $$seed \
	    --c4-run-dir $$run $(call RESUMED,$$run) || failed=1; \
	done; done; $(BIN)/python -m tools campaign $(BUSY)/*/ --by load || failed=1; exit $${failed:-0}

# README's and docs/figures.md's tables of idle and busy jobs, from the runs of `make accuracy` and `make busy`.
CAMPAIGNS ?= $(wildcard $(ACCURACY)/*/ $(BUSY)/*/)
campaigns: venv
	$(BIN)/python -m tools campaign $(CAMPAIGNS) --by load --figures README.md

# 20,000 iterations of busy jobs without a fault, beside others that burst and meet, on the same fabrics and on one whose
# uplinks are oversubscribed. What a run directory has passed is not run again.
SOAK ?= reports/runs/soak
soak: setup
	@for seed in $(SEEDS); do for fabric in $(BUSY_FABRICS) $(OVERSUBSCRIBED); do \
	  run=$(SOAK)/$$seed-$$(basename $$fabric .yml); mkdir -p $$run; \
	  $(BIN)/pytest --hosts softroce -m nightly $(BUSY_SOAK) --c4-topology $$fabric --c4-seed $$seed --c4-run-dir $$run \
	    $(call RESUMED,$$run) --c4-limit 4 || failed=1; \
	done; done; exit $${failed:-0}

# Healthy jobs on 30 fabrics that are drawn from each seed; beside a run directory is its topology file.
FABRICS ?= reports/runs/fabrics
fabrics: setup
	@for seed in $(SEEDS); do for number in $$(seq 0 29); do \
	  run=$(FABRICS)/$$seed-$$number; mkdir -p $$run; \
	  $(BIN)/python $(GRADING)/fabrics.py $$seed $$number >$$run.yml && \
	  $(BIN)/pytest --hosts softroce $(HEALTHY) --c4-topology $$run.yml --c4-seed $$seed --c4-run-dir $$run \
	    $(call RESUMED,$$run) || failed=1; \
	done; done; exit $${failed:-0}

# Every scenario of `make test` on every topology (exit code 4: most are skipped there), and those of C4P where hosts are
# cabled in another order than the inventory's. One that none carries is an error.
TOPOLOGIES ?= $(basename $(notdir $(wildcard c4bench/lab/topologies/*.yml)))
SHUFFLED   ?= $(basename $(notdir $(wildcard tests/scenarios/c4p/shuffled-*.yml)))
EVERY      ?= reports/runs/every-topology
# Scenarios that have a fabric of their own.
define OWN_FABRICS
verbs/dscp.yml verbs/test_traffic_class.py
c4p/no-icmp.yml c4p/test_atlas.py
c4p/interfaces.yml c4p/test_graph.py grading/test_fabrics.py
endef
export OWN_FABRICS
every-topology: setup
	@for topology in $(TOPOLOGIES); do mkdir -p $(EVERY)/$$topology; \
	  $(LAB) tests/scenarios --c4-topology $$topology --c4-run-dir $(EVERY)/$$topology \
	    $(call RESUMED,$(EVERY)/$$topology) || [ $$? = 4 ] || failed=1; \
	done; for topology in $(SHUFFLED); do mkdir -p $(EVERY)/$$topology; \
	  $(LAB) tests/scenarios/c4p --c4-topology tests/scenarios/c4p/$$topology.yml --c4-run-dir $(EVERY)/$$topology \
	    $(call RESUMED,$(EVERY)/$$topology) || [ $$? = 4 ] || failed=1; \
	done; echo "$$OWN_FABRICS" | { while read -r fabric files; do run=$(EVERY)/$$(basename $$fabric .yml); mkdir -p $$run; \
	  $(LAB) --c4-topology tests/scenarios/$$fabric $$(printf 'tests/scenarios/%s ' $$files) --c4-run-dir $$run \
	    $(call RESUMED,$$run) </dev/null || failed=1; \
	done; exit $${failed:-0}; } || failed=1; \
	$(BIN)/python tests/scenarios/every_topology.py $(EVERY)/* && exit $${failed:-0}

# Every scenario of `make test` on a lab that stands for a rack: twin.failed.
TWIN ?= reports/runs/twin
twin: setup
	@mkdir -p $(TWIN); $(LAB) tests/scenarios --c4-topology rack-2x4 --c4-allow-disruptive --c4-limit 4 --c4-run-dir $(TWIN) \
	  $(call RESUMED,$(TWIN)) || [ $$? = 4 ]
	$(LAB) --c4-topology tests/scenarios/verbs/floor-off.yml tests/scenarios/verbs/test_connectx.py
	$(LAB) --c4-topology tests/scenarios/resilient/connectx.yml $(addprefix $(TRIAL),[0] [3] [5] [10])

# The data plane and the lab, what c4bench's own programs cost, and how soon MPI runs in a new lab.
bench: MARKED = nightly
bench: setup
	$(BIN)/c4bench bench
	$(BIN)/python -m tools bench
	$(TIMED) attach.lab_start_s=60 -- $(LAB) tests/scenarios/attach/test_as_they_are.py::test_eight_ranks_start

report:
	$(BIN)/c4bench report reports/runs/latest

# The simulated table and figure of docs/diloco.md, and the tables of README and docs/figures.md from the newest runs of
# `make test` and then `make lab`, all of one commit.
RUNS ?= $(wildcard reports/runs/*-main* reports/runs/*-drills*)
figures: venv
	$(BIN)/python -m tools table4 docs/diloco.md
	$(BIN)/python -m tools retries docs/reference/retries.md
	$(BIN)/python -m tools readme README.md $(RUNS)

# The table of faults under programs of others, from runs of their longer forms.
attached: venv
	$(BIN)/python -m tools attached docs/reference/attach.md $(RUNS)

# The walks of docs/architecture.md, from a traced run; needs no lab.
walks: venv
	$(BIN)/python tests/unit/docs/walks.py docs/architecture.md

doctor: venv
	$(BIN)/c4bench doctor

clean:
	rm -rf $(VENV) .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis dist
