# Everything a person needs: make demo, make test. The rest serves these two.
# All of it runs as root: real kernels want it.

VERSION  ?= v0.1.0-dev
# The same flags everywhere, so that Kubernetes is compiled once.
export GOFLAGS := -trimpath -buildvcs=false
LDFLAGS  := -s -w -X main.version=$(VERSION)
# What kubelet and kubectl say of themselves; Kubernetes' own build sets these.
K8S_VERSION := v1.37.1
K8S_LDFLAGS := -X k8s.io/component-base/version.gitVersion=$(K8S_VERSION) \
               -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37
export CGO_ENABLED := 0

# Programs by Debian's and Ubuntu's names: what the lab, its images and the demo use, and
# what the tests use besides.
DEMO_PACKAGES := nftables iproute2 containerd runc iptables kmod tcpdump bind9-dnsutils netcat-openbsd \
                 wget busybox bash curl dash iputils-ping procps ca-certificates \
                 ipvsadm conntrack net-tools bsdextrautils
PACKAGES      := $(DEMO_PACKAGES) gcc libc6-dev bird2 \
                 linux-source make patch flex bison bc xz-utils binutils

.PHONY: all build deps chart image image-twice images lab cni-plugins uml demo test test-product test-chart test-helm test-user test-uml test-lab test-containerd test-faults test-peers test-others test-versions test-tenants test-commands test-e2e faults faults-inside faults-inside-nft faults-inside-iptables faults-inside-switch soak bench-scale bench-packets bench-lb bench-moves bench-podnetwork bench-policy test-policy test-policy-conformance vet lint vuln bench fuzz clean

all: build

## deps: install what is missing for the tests (apt, by name) and fetch the modules
deps:
	@hack/packages $(PACKAGES)
	@hack/stage "downloading modules" sh -c 'go mod download && (cd lab && go mod download) && (cd test/chart && go mod download) && cd test/peers && go mod download'

## build: bin/fairway and the CNI plugin bin/fairway-cni, static
build:
	go build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

## image: bin/fairway-image.tar, loadable by containerd, docker and podman
image: build
	go run ./hack/mkimage -o bin/fairway-image.tar -version $(VERSION)

## chart: the Helm chart bin/fairway-VERSION.tgz, and its files in bin/chart
chart:
	@rm -rf bin/chart && mkdir -p bin
	go run ./hack/mkchart -version $(VERSION) -dir bin/chart

## image-twice: the image from two clones, which must have the same digest (a minute)
image-twice:
	@hack/image-twice $(VERSION)

## images: the lab's built-in images, bin/images/*.tar
images:
	cd lab && go run ./images/cmd/mkimages -o ../bin/images

## lab: bin/fairway-lab, a whole cluster in one program (4 minutes from an empty cache)
lab:
	cd lab && go build -ldflags '$(LDFLAGS) $(K8S_LDFLAGS)' -o ../bin/fairway-lab ./cmd/fairway-lab
	ln -sf fairway-lab bin/kubectl

## cni-plugins: the reference plugins of a lab with --pod-network bridge, in bin/cni-plugins
cni-plugins: bin/cni-plugins
bin/cni-plugins: test/peers/go.mod
	@mkdir -p $@
	cd test/peers && go build -ldflags '-s -w' -o $(CURDIR)/$@/ $(addprefix github.com/containernetworking/plugins/plugins/,main/bridge main/loopback ipam/host-local)
	@touch $@

## uml: bin/linux.uml, a kernel as a process, for tests that the machine's cannot run
uml:
	@hack/mkuml/mkuml bin/linux.uml

## demo: the main job: a three-node cluster, the seeds' application, packets reaching pods
demo:
	@hack/packages $(DEMO_PACKAGES)
	@hack/stage "downloading modules" sh -c 'go mod download && cd lab && go mod download'
	@hack/stage "building fairway and its image" $(MAKE) image
	@hack/stage "building the lab's images" $(MAKE) images
	@hack/stage "building the lab: Kubernetes' control plane, kubelet, etcd (minutes from an empty cache)" $(MAKE) lab
	@go run ./hack/demo

## test: every test; SEEDS=N as for test-peers
test: build image images lab cni-plugins uml bin/kube-proxy bin/frr bin/gotestsum
	@$(MAKE) --no-print-directory -j2 test-product test-others

# Two processes test at a time. The product's packages have both cores full of packets to
# send, one package at a time; what the others do is mostly waiting: for a kernel that has
# one CPU, for kube-proxy, for a cluster.
test-others: lint
	@$(MAKE) --no-print-directory test-chart
	@$(MAKE) --no-print-directory test-uml
	@$(MAKE) --no-print-directory test-peers
	@$(MAKE) --no-print-directory -j2 test-lab test-faults

# The packages that boot user-mode Linux, and the one that runs a cluster.
UML := ./internal/testing/uml ./internal/datapath/ipvs
FAULTS := ./test/faults

# go test, and at the end each test that was skipped, with its reason.
GOTEST := $(CURDIR)/bin/gotestsum --format standard-quiet --
bin/gotestsum: go.mod
	go build -o bin/gotestsum gotest.tools/gotestsum && touch bin/gotestsum

test-product: bin/gotestsum
	CGO_ENABLED=1 $(GOTEST) -race ./internal/proxy ./internal/kube ./internal/proxy/health ./internal/flow ./internal/flow/reset
	CGO_ENABLED=1 $(GOTEST) -race -skip 'TestConformance|TestHash' ./internal/datapath/userspace
	go build ./... && $(GOTEST) -p 1 -timeout 30m -skip '^TestInUML$$' $$(go list ./... | grep -vxF "$$(go list $(UML) $(FAULTS))")

# With -mod=mod: the module has the root's dependencies and Helm's, and follows the root's.
## test-chart: the Helm chart, rendered by Helm, against what fairway install applies
test-chart: bin/gotestsum
	cd test/chart && $(GOTEST) -mod=mod ./...

## test-helm: the chart in a lab by Helm's own actions: install, upgrade, rollback, clean-up, uninstall (a minute; not in CI)
test-helm: image images lab
	cd test/chart && FAIRWAY_LAB_BIN=$(CURDIR)/bin/fairway-lab go test -mod=mod -vet=off -tags helm -v -count=1 -timeout 20m -run TestHelm .

## test-user: what an ordinary user can test; says what it leaves out; PKG=./internal/podnetwork/cni for one
test-user:
	@mkdir -p bin; go test -v $(or $(PKG),./...) >bin/test-user.log 2>&1; status=$$?; \
	grep -E '^(ok|FAIL|panic:|left out:|    --- FAIL|--- FAIL)' bin/test-user.log; \
	test $$status = 0 || { echo "make test-user: all of the output is in bin/test-user.log" >&2; exit $$status; }

## test-uml: the tests in user-mode Linux, mode ipvs first of all
test-uml: uml bin/gotestsum
	$(GOTEST) -p 1 -timeout 30m $(UML)
	$(GOTEST) -timeout 30m -run '^TestInUML$$' ./internal/podnetwork/node

# Without vet: it would analyse all of Kubernetes first, which takes longer than the tests. Never from
# the cache: it does not know the programs in bin/, which are what is tested.
test-lab: bin/gotestsum
	cd lab && FAIRWAY_LAB_BIN=$(CURDIR)/bin/fairway-lab $(GOTEST) -count=1 -vet=off -timeout 25m ./...

bin/containerd-2: test/containerd/go.mod
	cd test/containerd && go build -ldflags '-s -w' -tags 'no_btrfs no_devmapper no_zfs' -o $(CURDIR)/$@/ tool && touch $(CURDIR)/$@

## test-containerd: labs whose nodes run containerd 2, built from its module, instead of the machine's: pods, streams, policies, reboots (five minutes; not in CI)
test-containerd: build image images lab bin/containerd-2 bin/gotestsum
	cd lab && PATH=$(CURDIR)/bin/containerd-2:$$PATH LAB_CONTAINERD=2. FAIRWAY_LAB_BIN=$(CURDIR)/bin/fairway-lab $(GOTEST) -count=1 -vet=off -timeout 20m -run 'TestLab$$|TestNetworkPolicy$$|TestFromContainerd' ./cluster

## test-tenants: hostile objects, and all of those as large as the API server takes them, beside another tenant (ten minutes; those that cost CI less than half a minute are part of make test-lab)
test-tenants: build image images lab
	cd lab && FAIRWAY_TENANTS=all FAIRWAY_LAB_BIN=$(CURDIR)/bin/fairway-lab go test -v -count=1 -vet=off -timeout 40m -run 'TestTenants$$' ./cluster

## test-commands: every command of both programs in a lab, all that it prints against golden files (a minute or two; UPDATE=1 writes them anew; not in CI)
test-commands: build image images lab
	cd lab && FAIRWAY_LAB_BIN=$(CURDIR)/bin/fairway-lab go test -v -count=1 -tags transcripts -vet=off -timeout 20m -run 'TestCommands|TestEachCommand' ./cluster $(if $(UPDATE),-update)

# One lab of two nodes, which waits most of the time too: it fits beside those of test-lab.
test-faults: bin/gotestsum
	FAIRWAY_LAB_BIN=$(CURDIR)/bin/fairway-lab $(GOTEST) -count=1 -timeout 15m -skip TestSoak $(FAULTS)

## test-versions: agent, tools and DNS against API servers of three minor versions, built from their modules (minutes each, the first time); not in CI
VERSIONS ?= 1.35 1.36 1.37
test-versions: build
	cd lab && go build -ldflags '-s -w' -o ../bin/etcd go.etcd.io/etcd/server/v3
	@for v in $(VERSIONS); do FAIRWAY_BIN=$(CURDIR)/bin/fairway hack/test-version $$v || exit 1; done

## faults: a cluster under load, one fault after the other; prints the table that docs/reliability.md keeps
faults: build image images lab
	FAULTS=full FAIRWAY_LAB_BIN=$(CURDIR)/bin/fairway-lab go test -v -count=1 -timeout 60m -run TestFaults $(FAULTS)

## faults-inside: nft and iptables fail at each of their system calls, in six ways, wherever two differ (FAULTS_AT=every: at all); a target for each: -nft, -iptables, -switch; in PARTS parts side by side
PARTS ?= 2
FAULTS_AT ?= all
FAULTS_INSIDE := faults-inside-nft faults-inside-iptables faults-inside-switch
faults-inside:
	@for one in $(FAULTS_INSIDE); do $(MAKE) --no-print-directory $$one || exit 1; done
faults-inside-nft: INSIDE := ./internal/kernel/nft
faults-inside-iptables: INSIDE := ./internal/datapath/iptables
faults-inside-switch: INSIDE := ./internal/datapath
$(FAULTS_INSIDE):
	@go vet $(INSIDE) && start=$$(date +%s); pids=; for i in $$(seq $(PARTS)); do \
	  FAIRWAY_FAULTS=$(FAULTS_AT):$$i/$(PARTS) go test -v -count=1 -timeout 90m -run 'StepFaults|SwitchFaults' $(INSIDE) & pids="$$pids $$!"; done; \
	failed=0; for p in $$pids; do wait $$p || failed=1; done; echo "$@: $$(($$(date +%s) - start)) s, load $$(cut -d' ' -f1-3 /proc/loadavg)"; exit $$failed

## soak: random changes under load for FOR=30m, then nothing may differ or have grown; MODES are those that are switched between (userspace by itself; ipvs by itself, in user-mode Linux, without a cluster); SEED=N repeats a run
FOR ?= 30m
MODES ?= nftables iptables
ifeq ($(MODES),ipvs)
soak: uml
	FOR=$(FOR) FAIRWAY_SEED=$(or $(SEED),random) nice go test -v -count=1 -timeout 0 -run TestInUML/TestSoak ./internal/datapath/ipvs
else
soak: build image images lab
	FOR=$(FOR) MODES='$(MODES)' SEED=$(SEED) FAIRWAY_LAB_BIN=$(CURDIR)/bin/fairway-lab nice go test -v -count=1 -timeout 0 -run TestSoak $(FAULTS)
endif

## bench-lb: how long a load-balancer address is away when its owner dies, 20 times, 50 faults of two, three and five nodes, and every fault of the election; the same by BGP with BFD, and of edges (25 minutes on a busy machine)
bench-lb:
	FAIRWAY_FAULTS=all go test -v -count=1 -timeout 30m -run 'TestOutage|TestKilledAlone|TestFaults|TestNeverTwo' ./internal/loadbalancer/layer2
	FAIRWAY_FAULTS=all go test -v -count=1 -timeout 30m -run 'TestBFDOutage' ./internal/loadbalancer/bgp
	FAIRWAY_FAULTS=all go test -v -count=1 -timeout 30m -run 'TestEdgePair|TestEdgeThree' ./cmd/fairway
	FAIRWAY_FAULTS=all go test -v -count=1 -timeout 30m -run 'TestExhaustive|TestFirst|TestRandom' -bench . -benchtime 1x ./internal/loadbalancer/layer2/election
	go test -run '^$$' -bench 'Decide$$|Change|Death' -benchtime 5x ./internal/loadbalancer/announce

## bench-moves: 20,000 connections from outside while a Service's pods are replaced, under Cluster and Local, in each way to give it an address (WAYS), the death of one of two nodes, 20 deaths of three with and without the API server, 20 deaths of a speaker alone, requests while speakers and agents are replaced, and a router that is slow meanwhile; forty-five minutes; not in CI
WAYS ?= l2 bgp servicelb edge edge-ip
bench-moves: build image images lab
	cd lab && FAIRWAY_MOVES='$(WAYS)' FAIRWAY_LAB_BIN=$(CURDIR)/bin/fairway-lab go test -v -count=1 -tags moves -vet=off -timeout 90m -run 'TestMoves|TestTwoNodes|TestDeaths|TestSpeakersKilled|TestReplaced|TestSlowRouter' ./cluster

bin/kube-proxy: test/peers/go.mod
	cd test/peers && go build -o ../../bin/kube-proxy k8s.io/kubernetes/cmd/kube-proxy && touch ../../bin/kube-proxy

# FRR, the other router of the tests of BGP: Debian's package, unpacked and not installed, for its service
# would start. Without it those tests are skipped, and say so.
bin/frr:
	@hack/stage "unpacking FRR" hack/frr bin/frr || echo "no FRR: the tests that need it (TestFRR…, TestWeightsFRR) will be skipped"

# The program of a former release, for the test of upgrades: built from the history, which a
# clone of depth 1 does not have.
FORMER ?= 16d7bce
bin/fairway-former:
	@if ! git cat-file -e $(FORMER)^{commit} 2>/dev/null; then echo "no commit $(FORMER) in this clone: TestUpgrade will be skipped"; exit 0; fi; \
	dir=$$(mktemp -d) && trap 'rm -rf '$$dir EXIT && git archive $(FORMER) | tar -x -C $$dir && \
	cd $$dir && go build -ldflags '-s -w -X main.version=$(FORMER)' -o $(CURDIR)/$@ ./cmd/fairway

## test-peers: 500 random clusters for real kube-proxy and for us, the same packets, and faults; SEEDS=N FIRST_SEED=N for others, GONE=60 for a minute without API server
test-peers: build bin/kube-proxy bin/fairway-former bin/gotestsum
	cd test/peers && $(GOTEST) -count=1 -vet=off -timeout 30m ./...

## bench-scale: both at 1,000 and 10,000 Services and one of 5,000 endpoints, us at 50,000 too; ARGS="-kube-proxy-max 50000" for it as well (an hour)
bench-scale: build bin/kube-proxy
	cd test/peers && go run ./cmd/bench-scale $(ARGS)

## bench-packets: connect latency and rate through both, and directly; fails if ours is slower
bench-packets: build bin/kube-proxy
	cd test/peers && go test -vet=off -run '^$$' -bench BenchmarkPackets -benchtime 1x -timeout 30m .

## test-e2e: Kubernetes' own specs of the network against a lab (FOCUS, SKIP: regular expressions; DNS=coredns: in kubeadm's Deployment; UP: flags of fairway-lab up); an hour; not in CI
test-e2e: build image images lab
	cd test/e2e && mkdir -p ../../bin/e2e/images && go build -ldflags '-s -w' -o ../../bin/e2e/ tool ./coredns && \
	cp $$(go list -m -f '{{.Dir}}' k8s.io/kubernetes)/test/images/agnhost/porter/localhost.* ../../bin/fairway ../../bin/e2e/ && go test -vet=off -ldflags '-s -w' -c -o ../../bin/e2e/e2e.test .
	cd lab && go run ./images/cmd/mkimages -o ../bin/e2e/images -e2e ../bin/e2e
	FOCUS='$(FOCUS)' SKIP='$(SKIP)' DNS='$(DNS)' hack/e2e $(UP)

## test-policy: all proof of NetworkPolicies, stage by stage, each with its time; what passed on this tree is not run again (FRESH=1 does). STAGES: some of them, as in "oracles walk-iptables" (hack/test-policy has all); SEEDS=N random worlds (20); not in CI
test-policy: build image images lab cni-plugins bin/kube-proxy bin/policy/policy.test
	@hack/test-policy $(STAGES)

## test-policy-conformance: of these, network-policy-api's tests against labs, in the modes nftables and iptables, of IPv4 and of IPv6 (RUN: a regular expression over the tests' names)
test-policy-conformance: STAGES = conformance-nftables conformance-iptables conformance-nftables-ipv6 conformance-iptables-ipv6
test-policy-conformance: test-policy

bin/policy/policy.test: $(wildcard test/policy/*.go test/policy/go.mod test/policy/sctp/*.go)
	mkdir -p bin/policy/images
	cd test/e2e && go build -ldflags '-s -w' -o ../../bin/policy/ k8s.io/kubernetes/test/images/agnhost
	cd test/policy && go build -ldflags '-s -w' -o ../../bin/policy/ ./sctp && go test -vet=off -c -o ../../bin/policy/policy.test .
	cd lab && go run ./images/cmd/mkimages -o ../bin/policy/images -policy ../bin/policy

## bench-podnetwork: ADD, DEL and GC, pod to pod on a node and by each way, beside the reference plugins and a tunnel made by hand; what our rules cost; limits of bandwidth (three minutes)
bench-podnetwork: export FAIRWAY_BENCH_PLUGINS = $(CURDIR)/bin/bench-plugins
bench-podnetwork: build
	@mkdir -p $(FAIRWAY_BENCH_PLUGINS) && cp bin/fairway-cni $(FAIRWAY_BENCH_PLUGINS)
	cd test/peers && go build -o $(FAIRWAY_BENCH_PLUGINS)/ $(addprefix github.com/containernetworking/plugins/plugins/,main/bridge ipam/host-local meta/portmap meta/bandwidth)
	@cat /proc/loadavg
	go test ./internal/podnetwork/cni -run xxx -bench Plugins -benchtime 100x
	go test ./internal/podnetwork/node -run xxx -bench PodToPod -benchtime 1x
	go test ./internal/podnetwork/node -run xxx -bench PodRules -benchtime 1x
	@cat /proc/loadavg
	go test ./internal/podnetwork/cni -run xxx -bench Bandwidth

## bench-policy: NetworkPolicies at 10,000 pods, 1,000 policies, 100 pods of the node: cold start, changes, memory, connections a second (half a minute)
bench-policy:
	go test -run '^$$' -bench BenchmarkPolicy -benchtime 1x ./internal/networkpolicy/nftables

## vet: what go vet finds, in all modules and with the build tag of the tests in user-mode Linux
vet:
	go vet ./...
	go vet -tags uml ./internal/datapath/ipvs ./internal/podnetwork/node
	cd lab && go vet ./... && go vet -tags moves ./cluster && go vet -tags transcripts ./cluster
	cd test/chart && go vet ./... && go vet -tags helm .
	cd test/peers && go vet ./...

# Not of the lab and test/peers: it would analyse all of Kubernetes first.
## lint: what staticcheck finds, all of its checks (a minute of two cores from an empty cache)
lint:
	go tool staticcheck ./...
	go tool staticcheck -tags uml ./internal/datapath/ipvs ./internal/podnetwork/node

## vuln: known vulnerabilities that our code reaches; needs the database at vuln.go.dev
vuln:
	@hack/vuln

## bench: print the figures that docs/performance.md keeps
bench: build image images lab uml
	go test -run '^$$' -bench . -benchtime 20x ./internal/datapath/nftables ./internal/podnetwork/node ./internal/podnetwork/cni ./internal/flow/conntrack
	go test -run '^$$' -bench Modes -benchtime 1x ./internal/datapath
	go test -run '^$$' -bench InUML -benchtime 1x ./internal/datapath/ipvs
	@hack/packages haproxy
	go test -run '^$$' -bench . -benchtime 10x ./internal/datapath/userspace
	bin/fairway-lab down && bin/fairway-lab up && bin/fairway-lab status && bin/fairway-lab down

## fuzz: each fuzzer for FUZZTIME
FUZZTIME ?= 20s
fuzz:
	@hack/fuzz $(FUZZTIME) $$(go list ./internal/...)

clean:
	rm -rf bin
