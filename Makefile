# What people and .ci/run both use. Go is needed; race wants gcc as well, and the
# tests PostgreSQL and pgbouncer, which .ci/postgres installs on Debian.

GO          ?= go
TESTFLAGS   ?=
FUZZTIME    ?= 1m
CHAOS       ?= 10m
STATICCHECK  = $(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2

.PHONY: help
help: ## say what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' Makefile

.PHONY: check
check: fmt vet static layout ## everything that looks at the code without running it

.PHONY: fmt
fmt:
	@files=$$(gofmt -l .); if [ -n "$$files" ]; then echo "gofmt -w is needed for:" $$files; exit 1; fi

.PHONY: vet
vet:
	$(GO) vet ./...

.PHONY: static
static:
	$(STATICCHECK) ./...

.PHONY: layout
layout: ## layering, sizes and words; documentation of the command line
	$(GO) test -run '^TestLayout' .
	$(GO) test -run '^Test(Documentation|Help)' ./cmd/mcpreplay

.PHONY: test
test: ## every test
	@.ci/postgres
	$(GO) test $(TESTFLAGS) ./...

.PHONY: race
race: ## every test under the race detector
	@.ci/postgres
	$(GO) test -race $(TESTFLAGS) ./...

.PHONY: fuzz
fuzz: ## each fuzz target for FUZZTIME
	@for p in $$($(GO) list ./...); do \
		for f in $$($(GO) test -list '^Fuzz' $$p | grep '^Fuzz'); do \
			echo "$$p $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$p || exit 1; \
		done; \
	done

.PHONY: golden
golden: ## write what the tests compare with anew; read the difference before committing it
	$(GO) test ./cmd/mcpreplay ./guard ./internal/lab -update

.PHONY: lab
lab: ## play every cell, and recheck the evidence
	rm -rf attempt
	$(GO) run ./cmd/mcpreplay lab run --out attempt
	$(GO) run ./cmd/mcpreplay verify attempt

KEPT = 01-stdio,02-stdio,03-stdio,04-stdio,05-stdio,06-stdio,07-stdio,08-stdio,09-stdio,10-stdio,11-stdio,12-stdio,03-control,04-control,11-control,newid-control

.PHONY: evidence
evidence: ## make the attempt that is kept anew, from a clean commit
	@dir=$$(mktemp -d) && $(GO) run ./cmd/mcpreplay lab run --only $(KEPT) --out $$dir/attempt && \
		rm -rf evidence && mkdir evidence && mv $$dir/attempt evidence/attempt-$$(date -u +%Y%m%d) && rmdir $$dir

.PHONY: mutants
mutants: ## break the product on purpose: the lab must notice each time
	$(GO) run ./internal/mutants

.PHONY: chaos
chaos: ## hosts and their database killed for CHAOS, while clients go on
	@.ci/postgres
	MCPREPLAY_CHAOS=$(CHAOS) $(GO) test -count=1 -timeout 0 -v ./internal/chaos

.PHONY: bench
bench: ## benchmarks
	$(GO) test -run '^$$' -bench . -benchmem ./...

.PHONY: demo
demo: ## lose a reply, and recover it
	$(GO) run ./cmd/mcpreplay demo
