package iptables

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/kernel/xtables"
	"github.com/fairway-net/fairway/internal/testing/childfault"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestCleanupOfOldRevisions: Cleanup removes rules with old revisions of a match, which iptables does not find.
// iptables-nft-restore writes them if the kernel has no memory to answer which revisions it has.
func TestCleanupOfOldRevisions(t *testing.T) {
	testnet.Enter(t)
	const program, hook = "iptables-nft-restore", "OUTPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL"
	programs := childfault.Intercept(t, program)
	run := func(line string) (string, error) {
		out, err := exec.Command("sh", "-c", line).CombinedOutput()
		return string(out), err
	}
	table := faultTables()[0]
	sync(t, open(t, NFT), table)
	steps := programs.Steps()
	old := 0
	for i, step := range steps[:min(12, len(steps))] { // the first steps ask for revisions
		if step.Changes {
			continue
		}
		programs.Arm(i+1, childfault.NoMemory)
		_, _ = open(t, NFT).Sync(context.Background(), table) // it may fail
		programs.Disarm()
		sync(t, open(t, NFT), table)
		if out, err := run("iptables-nft-save -t filter"); err != nil || !strings.Contains(out, hook) {
			t.Fatalf("%v: %v\n%s", step, err, out)
		}
		if _, err := run("iptables-nft -t filter -C " + hook); err != nil {
			old++
		}
		if err := open(t, NFT).Cleanup(context.Background()); err != nil {
			t.Fatalf("step %d, %v: %v", i+1, step, err)
		}
		if out, err := run("iptables-nft-save"); err != nil || strings.Contains(out, "KUBE") || strings.Contains(out, xtables.FairwaySettings) {
			t.Fatalf("step %d, %v: %v, left\n%s", i+1, step, err, out)
		}
	}
	if old == 0 {
		t.Errorf("at no step of %d were rules written that iptables does not find: this proves nothing", len(steps))
	}
	t.Logf("%d steps, rules of old revisions at %d", len(steps), old)
}

// TestHookOfOldRevision: Sync removes another program's hook to our chain, also if iptables does not find the hook,
// because it has an older revision of a match than iptables would write. Our own hooks stay.
func TestHookOfOldRevision(t *testing.T) {
	testnet.Enter(t)
	const program, rule = "iptables-nft", "OUTPUT -m conntrack --ctstate NEW,RELATED -j KUBE-PROXY-FIREWALL"
	programs := childfault.Intercept(t, program)
	run := func(line string) (string, error) {
		out, err := exec.Command("sh", "-c", line).CombinedOutput()
		return string(out), err
	}
	table := faultTables()[0]
	programs.Disarm()
	sync(t, open(t, NFT), table)
	want, err := run("iptables-nft-save | grep -v '^#'")
	if err != nil {
		t.Fatalf("%v: %s", err, want)
	}
	programs.Arm(0, childfault.NoMemory)
	_, _ = run(program + " -A " + rule)
	steps := programs.Steps()
	programs.Disarm()
	old := 0
	for i := range steps {
		_, _ = run(program + " -D " + rule) // it may not be there
		programs.Arm(i+1, childfault.NoMemory)
		_, _ = run(program + " -A " + rule) // it may fail
		programs.Disarm()
		out, err := run("iptables-nft-save -t filter")
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if _, err := run(program + " -C " + rule); err != nil && strings.Contains(out, "NEW,RELATED") {
			old++
		}
		sync(t, open(t, NFT), table)
		if is, err := run("iptables-nft-save | grep -v '^#'"); err != nil || is != want {
			t.Fatalf("step %d, %v: %v: the kernel has\n%s\nwant\n%s", i+1, steps[i], err, is, want)
		}
	}
	if old == 0 {
		t.Errorf("at no step of %d was a rule written that iptables does not find: this proves nothing", len(steps))
	}
	t.Logf("%d steps, rules of old revisions at %d", len(steps), old)
}
