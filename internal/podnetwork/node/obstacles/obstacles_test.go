package obstacles

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// run runs a line of shell in a namespace.
func run(t *testing.T, n *testnet.Namespace, line string) {
	t.Helper()
	err := n.Do(func() error {
		if out, err := exec.CommandContext(t.Context(), "sh", "-ec", line).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", line, err, out)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestObstacles: with Docker on the node, forwarding is dropped by a chain that is not ours. The
// log and an event say so, once, and the status as long as the chain is there.
func TestObstacles(t *testing.T) {
	n, log := testnet.NewNamespace(t, "node"), &testnet.Log{}
	now, events := make(chan string, 10), make(chan string, 10)
	registry := prometheus.NewRegistry()
	w := &Watcher{
		Pods: func() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")} },
		Log:  slog.New(slog.NewTextHandler(log, nil)), Registry: registry,
		Event: func(reason, message string) { events <- reason + ": " + message },
		Now:   func(message string) { now <- message },
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Do(func() error { return w.Run(ctx) }) }()
	await := func(want string) {
		t.Helper()
		select {
		case got := <-now:
			if (want == "") != (got == "") || !strings.Contains(got, want) {
				t.Errorf("found %q, want %q", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("after a minute nothing says %q", want)
		}
	}
	run(t, n, `nft 'add table ip filter; add chain ip filter OTHER { type filter hook forward priority 1; policy accept; }
		add chain ip filter INPUT { type filter hook input priority 0; policy drop; }
		add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }'`)
	await("chain FORWARD of table ip filter drops")
	families, err := registry.Gather()
	if err != nil || len(families) != 1 || families[0].GetName() != "fairway_forwarding_dropped" || families[0].GetMetric()[0].GetGauge().GetValue() != 1 {
		t.Errorf("metrics: %v, %v", families, err)
	}
	// The pods are accepted: all is well. It is not when half of it is taken away.
	run(t, n, `nft 'add rule ip filter FORWARD ip saddr 10.244.0.0/16 accept; add rule ip filter FORWARD ip daddr 10.0.0.0/8 accept'`)
	await("")
	run(t, n, `nft 'flush chain ip filter FORWARD; add rule ip filter FORWARD ip saddr 10.244.0.0/16 accept'`)
	await("packets to 10.244.0.0/16 [")
	run(t, n, `nft 'delete table ip filter'`)
	await("")
	// A cluster without pods of IPv6 misses nothing there.
	run(t, n, `nft 'add table ip6 filter; add chain ip6 filter FORWARD { type filter hook forward priority 0; policy drop; };
		add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }'`)
	await("chain FORWARD of table ip filter")
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if log.Count("chain FORWARD of table ip filter") != 3 || log.Count("level=WARN") != 3 {
		t.Errorf("the log:\n%v", log)
	}
	if len(events) != 3 || !strings.HasPrefix(<-events, reasonDropped+": chain FORWARD") {
		t.Errorf("%d more events", len(events))
	}
}

// TestLastRuleRejects: firewalls of firewalld and of RHEL have policy accept, and reject in their last rule.
func TestLastRuleRejects(t *testing.T) {
	pods := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	const established = "add rule inet firewalld filter_FORWARD ct state established,related accept\n"
	for name, c := range map[string]struct {
		last string
		want bool
	}{
		"reject":                {"reject with icmpx admin-prohibited", true},
		"counted drop":          {"counter drop", true},
		"rejects some":          {"ip daddr 192.0.2.0/24 reject", false},
		"accepts":               {"accept", false},
		"pods are accepted":     {"ip saddr 10.244.0.0/16 accept; add rule inet firewalld filter_FORWARD ip daddr 10.244.0.0/16 accept; add rule inet firewalld filter_FORWARD reject", false},
		"one way is accepted":   {"ip saddr 10.244.0.0/16 accept; add rule inet firewalld filter_FORWARD reject", true},
		"in a table of Fairway": {"accept; add table inet fairway-x; add chain inet fairway-x f { type filter hook forward priority 0; }; add rule inet fairway-x f drop", false},
	} {
		n := testnet.NewNamespace(t, "node")
		run(t, n, "nft 'add table inet firewalld; add chain inet firewalld filter_FORWARD { type filter hook forward priority 10; policy accept; }\n"+
			established+"add rule inet firewalld filter_FORWARD "+c.last+"'")
		w := &Watcher{}
		for range 2 { // the second look knows the last rule
			var found []string
			err := n.Do(func() (err error) {
				var reader nft.Reader
				defer reader.Close()
				found, err = w.findObstacles(t.Context(), &reader, pods)
				return err
			})
			if err != nil || (len(found) == 1) != c.want {
				t.Errorf("%s: found %q (%v), want %v", name, found, err, c.want)
			}
		}
	}
}

// dockerIptables are the rules of Docker 28 with its default network, as iptables-save prints them.
const dockerIptables = `*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:DOCKER - [0:0]
:DOCKER-BRIDGE - [0:0]
:DOCKER-CT - [0:0]
:DOCKER-FORWARD - [0:0]
:DOCKER-ISOLATION-STAGE-1 - [0:0]
:DOCKER-ISOLATION-STAGE-2 - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-FORWARD
-A DOCKER ! -i docker0 -o docker0 -j DROP
-A DOCKER-BRIDGE -o docker0 -j DOCKER
-A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A DOCKER-FORWARD -j DOCKER-CT
-A DOCKER-FORWARD -j DOCKER-ISOLATION-STAGE-1
-A DOCKER-FORWARD -j DOCKER-BRIDGE
-A DOCKER-FORWARD -i docker0 -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
COMMIT
`

// dockerNFT are those of Docker 29 with nftables, where it has turned forwarding on itself.
const dockerNFT = `table ip docker-bridges {
	map filter-forward-in-jumps { type ifname : verdict; elements = { "docker0" : jump filter-forward-in__docker0 }; }
	map filter-forward-out-jumps { type ifname : verdict; elements = { "docker0" : jump filter-forward-out__docker0 }; }
	chain filter-FORWARD {
		type filter hook forward priority filter; policy drop;
		oifname vmap @filter-forward-in-jumps
		iifname vmap @filter-forward-out-jumps
	}
	chain filter-forward-in__docker0 {
		ct state established,related counter accept
		iifname "docker0" counter accept comment "ICC"
		counter drop comment "UNPUBLISHED PORT DROP"
	}
	chain filter-forward-out__docker0 {
		ct state established,related counter accept
		counter accept comment "OUTGOING"
	}
}`

// Docker's rules, and others, accept the pods or not; each is loaded into the kernel, and read from there.
func TestDocker(t *testing.T) {
	const missesBoth, missesTo = "from 10.244.0.0/16, to 10.244.0.0/16", "to 10.244.0.0/16"
	user := func(rules ...string) string {
		return strings.Replace(dockerIptables, "COMMIT", strings.Join(rules, "\n")+"\nCOMMIT", 1)
	}
	for name, c := range map[string]struct{ iptables, nft, want string }{
		"Docker alone":                  {dockerIptables, "", missesBoth},
		"the advice":                    {user("-I FORWARD -s 10.244.0.0/16 -j ACCEPT", "-I FORWARD -d 10.244.0.0/16 -j ACCEPT"), "", ""},
		"in DOCKER-USER":                {user("-A DOCKER-USER -s 10.0.0.0/8 -m comment --comment pods -j ACCEPT", "-A DOCKER-USER -d 10.244.0.0/16 -j ACCEPT"), "", ""},
		"behind its drop":               {user("-A FORWARD -s 10.244.0.0/16 -j ACCEPT", "-A FORWARD -j REJECT", "-A FORWARD -d 10.244.0.0/16 -j ACCEPT"), "", missesTo},
		"a part of the pods":            {user("-A FORWARD -s 10.244.0.0/16 -j ACCEPT", "-A FORWARD -d 10.244.0.0/17 -j ACCEPT"), "", missesTo},
		"on one port":                   {user("-A FORWARD -s 10.244.0.0/16 -j ACCEPT", "-A FORWARD -d 10.244.0.0/16 -p tcp --dport 80 -j ACCEPT"), "", missesTo},
		"but these":                     {user("-A FORWARD -s 10.244.0.0/16 -j ACCEPT", "-A FORWARD ! -d 10.244.0.0/16 -j ACCEPT"), "", missesTo},
		"returned before":               {user("-A DOCKER-USER -s 10.244.0.0/16 -j ACCEPT", "-A DOCKER-USER -j RETURN", "-A DOCKER-USER -d 10.244.0.0/16 -j ACCEPT"), "", missesTo},
		"Docker's nftables alone":       {"", dockerNFT, missesBoth},
		"nftables":                      {"", dockerNFT + "\nadd rule ip docker-bridges filter-FORWARD ip saddr 10.244.0.0/16 accept; add rule ip docker-bridges filter-FORWARD ip daddr { 10.244.0.0/16, 192.0.2.1 } accept", ""},
		"states":                        {"", "table inet f { chain forwarded { type filter hook forward priority 0; policy drop; ct state established,related accept; ip saddr 10.244.0.0/16 ct state new accept; ip daddr 10.240.0.0-10.247.255.255 accept; }; }", ""},
		"established only":              {"", "table inet f { chain forwarded { type filter hook forward priority 0; policy drop; ct state established,related accept; }; }", missesBoth},
		"by a chain that is gone to":    {"", "table inet f { chain pods { ip saddr 10.244.0.0/16 accept; ip daddr 10.244.0.0/16 accept; }; chain forwarded { type filter hook forward priority 0; policy drop; goto pods; drop; }; }", ""},
		"for one interface":             {"", "table inet f { chain forwarded { type filter hook forward priority 0; policy drop; iifname eth0 accept; oifname eth0 accept; }; }", missesBoth},
		"one address is not its prefix": {"", "table inet f { chain forwarded { type filter hook forward priority 0; policy drop; ip saddr 10.244.0.0/16 accept; ip daddr 10.244.0.0 accept; }; }", missesTo},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := testnet.NewNamespace(t, "node")
			if c.iptables != "" {
				run(t, n, "iptables-nft-restore <<'EOF'\n"+c.iptables+"EOF\n")
			} else {
				run(t, n, "nft -f - <<'EOF'\n"+c.nft+"\nEOF\n")
			}
			var found []string
			err := n.Do(func() (err error) {
				var r nft.Reader
				defer r.Close()
				found, err = (&Watcher{}).findObstacles(t.Context(), &r, []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")})
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(found, "; "); (got == "") != (c.want == "") || !strings.Contains(got, "accepts: packets "+c.want+" [") && c.want != "" {
				t.Errorf("found %q, want what misses %q", got, c.want)
			}
		})
	}
}
