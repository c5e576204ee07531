package nftables_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// faulty is a program nft in PATH that is killed in one of its runs: before it does anything ("before"), while it works
// ("during"), or when the kernel is done ("after").
type faulty struct {
	t   *testing.T
	dir string
}

func newFaulty(t *testing.T) *faulty {
	testnet.NeedRoot(t, "makes network namespaces") // other users often have no nft in PATH
	nft, err := exec.LookPath("nft")
	if err != nil {
		t.Fatal(err)
	}
	f := &faulty{t, t.TempDir()}
	f.write("nft", fmt.Sprintf(`#!/bin/sh
cd %s
n=$(($(cat runs) + 1)); echo $n >runs
if [ $n = $(cat at) ]; then
	case $(cat how) in
	before) kill -9 $$ ;;
	during) %[2]s "$@" <&0 & sleep 0.004; kill -9 $!; kill -9 $$ ;;
	after) %[2]s "$@"; kill -9 $$ ;;
	esac
fi
exec %[2]s "$@"
`, f.dir, nft))
	f.killed(0, "")
	t.Setenv("PATH", f.dir+":"+os.Getenv("PATH"))
	return f
}

func (f *faulty) write(name, text string) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, name), []byte(text), 0o755); err != nil {
		f.t.Fatal(err)
	}
}

// killed makes the at-th run from now on end that way. 0 means no run.
func (f *faulty) killed(at int, how string) {
	f.write("runs", "0")
	f.write("at", strconv.Itoa(at))
	f.write("how", how)
}

// runs returns the number of runs of nft since killed.
func (f *faulty) runs() int {
	text, err := os.ReadFile(filepath.Join(f.dir, "runs"))
	n, err2 := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || err2 != nil {
		f.t.Fatal(err, err2)
	}
	return n
}

// formers has states that another version may have left, as changes of our table.
var formers = map[string]string{
	"other rules": "",
	"another priority": `delete chain inet fairway forward
		add chain inet fairway forward { type filter hook forward priority filter + 1; policy accept; }
		flush chain inet fairway postrouting
		delete chain inet fairway postrouting
		add chain inet fairway postrouting { type nat hook postrouting priority srcnat + 5; policy accept; }
		add rule inet fairway postrouting meta mark & 0x4000 == 0x4000 meta mark set meta mark ^ 0x4000 masquerade fully-random`,
	"another shape": `flush chain inet fairway dropped
		delete set inet fairway drops4
		add set inet fairway drops4 { type ipv4_addr; }
		add rule inet fairway dropped ip daddr @drops4 drop`,
}

// TestKilledLoads: nft is killed in each of its runs while another version takes the node over. The kernel then has all
// old rules or all new rules, and clients are always answered. Sync fails and says which rules run. The next Sync
// repairs the table, and no remains are left.
func TestKilledLoads(t *testing.T) {
	f, n := newFaulty(t), newNode(t, nftables.Config{}, 1)
	for former, change := range formers {
		runs := n.killedLoad(f, former, change, 0, "before")
		for at := 1; at <= runs; at++ {
			for _, how := range []string{"before", "during", "after"} {
				if how != "during" || former == "another shape" { // the result is that of "before" or "after", by chance
					n.killedLoad(f, former, change, at, how)
				}
			}
		}
	}
}

// killedLoad is one takeover, in which the at-th run of nft is killed. 0 means no run. It returns the number of runs.
func (n *node) killedLoad(f *faulty, former, change string, at int, how string) int {
	n.t.Helper()
	name := fmt.Sprintf("%s, run %d killed %s it worked", former, at, how)
	n.t.Log(name)
	old := []*service.Frontend{n.frontend("10.96.0.1:80", api.TCP, service.Random), n.frontend("10.96.0.2:81", api.TCP, service.RoundRobin)}
	affine := n.frontend("10.96.0.4:83", api.TCP, service.Random)
	affine.Affinity = time.Hour
	old = append(old, affine)
	all := append(old, n.frontend("10.96.0.3:82", api.TCP, service.Random))
	f.killed(0, "")
	n.cfg.Mark = 1 << 14
	n.restart()
	n.sync(old...)
	if change != "" {
		n.nft(change)
	}
	stop := n.load("10.96.0.1:80")
	defer stop()
	n.cfg.Mark = 1 << 15
	n.restart()
	f.killed(at, how)
	err := n.host.Do(func() error { _, err := n.dp.Sync(context.Background(), n.table(all...)); return err })
	ran := f.runs()
	f.killed(0, "")
	newRules := func() bool { return strings.Contains(n.nft("", "-s", "list", "ruleset"), "& 0x00008000") }
	switch is := "the kernel runs " + map[bool]string{true: "the new rules", false: "the rules from before"}[newRules()]; {
	case at == 0 && err != nil:
		n.t.Errorf("%s: error %v", name, err)
	case at > 0 && (err == nil || !strings.Contains(err.Error(), is)):
		n.t.Errorf("%s: error %v, but %s", name, err, is)
	}
	n.ask(n.clients[0], "tcp", "10.96.0.2:81")
	n.sync(all...)
	n.ask(n.clients[0], "tcp", "10.96.0.3:82")
	if out := n.nft("", "list", "tables"); out != "table inet fairway\n" || !newRules() {
		n.t.Errorf("%s: healed, the new rules run: %v, tables are\n%s", name, newRules(), out)
	}
	stop()
	if err := n.host.Do(func() error { return n.dp.Cleanup(context.Background()) }); err != nil {
		n.t.Fatal(err)
	}
	return ran
}

// TestChangedBetween: the first Sync of an agent undoes changes that another program made while no agent ran.
func TestChangedBetween(t *testing.T) {
	t.Parallel()
	n := newNode(t, nftables.Config{}, 1)
	all := []*service.Frontend{n.frontend("10.96.0.1:80", api.TCP, service.Random)}
	n.sync(all...)
	rules := func() string { return n.nft("", "-s", "list", "table", "inet", "fairway") }
	before := rules()
	for _, change := range []string{
		"flush chain inet fairway services", "flush chain inet fairway lb-random-3-masquerade-off-cluster",
		"insert rule inet fairway forward drop", "add chain inet fairway other { type filter hook forward priority 5; policy drop; }",
		"flush map inet fairway dispatch", "flush ruleset",
		"table inet fairway-former {\n chain forward {\n type filter hook forward priority 0; policy drop;\n }\n}\nflush chain inet fairway refused",
	} {
		n.nft(change)
		n.restart()
		if err := n.host.Do(func() error { _, err := n.dp.Sync(context.Background(), n.table(all...)); return err }); err != nil {
			t.Logf("%s: %v", change, err) // the next Sync repairs the table
		}
		n.sync(all...)
		n.ask(n.clients[0], "tcp", "10.96.0.1:80")
		if after := rules(); after != before {
			t.Errorf("%s: before\n%s\nafter\n%s", change, before, after)
		}
	}
}

// TestCounted: another program empties maps before one of the writes of a first Sync. Then Sync fails, or the kernel
// has everything, or (for the last write) the next Check notices.
func TestCounted(t *testing.T) {
	t.Parallel()
	n := newNode(t, nftables.Config{}, 1)
	all := []*service.Frontend{n.frontend("10.96.0.1:80", api.TCP, service.Random), n.frontend("10.96.0.2:81", api.TCP, service.RoundRobin)}
	table, caught := n.table(all...), 0
	for at := 1; ; at++ {
		writes := 0
		n.dp.FailWrites(func() error {
			if writes++; writes == at {
				_ = exec.Command("nft", "flush map inet fairway endpoints4; flush map inet fairway dispatch; flush set inet fairway pods4").Run() // an error means that the maps do not exist yet
			}
			return nil
		})
		err := n.host.Do(func() error { _, err := n.dp.Sync(context.Background(), table); return err })
		n.dp.FailWrites(nil)
		if writes < at {
			break
		}
		if err != nil {
			caught++
		}
		if err == nil && !n.drifts() {
			n.holds(fmt.Sprintf("maps are emptied before write %d, and Sync succeeded", at), table)
		}
		n.sync(all...)
		n.ask(n.clients[0], "tcp", "10.96.0.1:80")
		if err := n.host.Do(func() error { return n.dp.Cleanup(context.Background()) }); err != nil {
			t.Fatal(err)
		}
	}
	if caught == 0 {
		t.Error("no Sync failed")
	}
}

// drifts returns the result of Check.
func (n *node) drifts() bool {
	n.t.Helper()
	var drift datapath.Drift
	err := n.host.Do(func() (err error) {
		drift, err = n.dp.Check(context.Background())
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return drift.Any()
}

// holds fails if the kernel does not have exactly the frontends of a table.
func (n *node) holds(when string, table *service.Table) {
	n.t.Helper()
	var held datapath.Adopted
	err := n.host.Do(func() (err error) {
		held, err = n.dp.Adopt(context.Background())
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	if diff := service.Diff(held.Table, table); len(diff) > 0 || !held.Table.Settings.Equal(table.Settings) {
		n.t.Errorf("%s: the kernel holds %d frontends otherwise", when, len(diff))
	}
}
