package probe

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/operate/doctor"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestMain(m *testing.M) {
	if os.Getenv("DOCTOR_LOOK") != "" { // the other half of TestWithoutRoot
		text, err := json.Marshal(look(context.Background()))
		fmt.Println(string(text), err)
		os.Exit(0)
	}
	testnet.Main(m)
}

func look(ctx context.Context) doctor.Facts {
	return Look(ctx, Config{Node: "node-1", Mode: "nftables", Connection: kube.Connection{Kubeconfig: "/nonexistent"}, Healthz: 10256})
}

// TestLook: in a network namespace of its own the kernel can do the modes, and what other
// programs put there is found.
func TestLook(t *testing.T) {
	node := testnet.NewNamespace(t, "node")
	err := node.Do(func() error {
		f := look(t.Context())
		if !f.Root || f.Kernel == "" || len(f.Modes) != 5 || f.Modes[0].Err != "" || f.Programs[0].Version == "" || !f.Conntrack.Known {
			t.Errorf("%+v", f)
		}
		if f.Others.Err != "" || len(f.Others.Proxies) > 0 || len(f.Others.Drops) > 0 || f.AgentRuns || f.Ports[0].Holder != "" {
			t.Errorf("in an empty namespace: %+v", f)
		}
		if f.API.Skipped == "" || f.Uplink != "" {
			t.Errorf("API %+v, uplink %q", f.API, f.Uplink)
		}
		runNFT(t, "add table ip filter\nadd chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }\n"+
			"add chain ip filter OUTPUT { type filter hook output priority 0; policy drop; }\nadd table ip kube-proxy\n")
		f = look(t.Context())
		if !slices.Equal(f.Others.Drops, []string{"nft ip filter FORWARD (forward)"}) || !slices.Equal(f.Others.Proxies, []string{"kube-proxy (nftables table ip kube-proxy)"}) {
			t.Errorf("%+v", f.Others)
		}
		runNFT(t, "add table inet fw\nadd chain inet fw IN { type filter hook input priority 0; policy accept; }\nadd chain inet fw FWD { type filter hook forward priority 0; }\n"+
			"add rule inet fw IN tcp dport 22 accept\nadd rule inet fw IN reject\nadd rule inet fw FWD ct state established accept\nadd rule inet fw FWD counter drop\n")
		if got := look(t.Context()).Others.Drops; !slices.Equal(got, []string{"nft inet fw FWD (forward, by its last rule)", "nft inet fw IN (input, by its last rule)", "nft ip filter FORWARD (forward)"}) {
			t.Errorf("firewalls that reject last: %q", got)
		}
		runNFT(t, "delete table inet fw\n")
		runNFT(t, "delete chain ip filter OUTPUT\n")
		after := runNFT(t, "list ruleset\n")
		if look(t.Context()); runNFT(t, "list ruleset\n") != after || strings.Contains(after, "fairway") {
			t.Errorf("to look changed the rules:\n%s", after)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func runNFT(t *testing.T, text string) string {
	t.Helper()
	c := exec.Command("nft", "-f", "-")
	c.Stdin = strings.NewReader(text)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// TestWithoutRoot: an ordinary user gets facts too, and what is missing is skipped, not well.
func TestWithoutRoot(t *testing.T) {
	node := testnet.NewNamespace(t, "node")
	err := node.Do(func() error {
		c := exec.Command("/proc/self/exe")
		c.Env = append(os.Environ(), "DOCTOR_LOOK=1")
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := c.CombinedOutput()
		var f doctor.Facts
		if err != nil || json.Unmarshal([]byte(strings.TrimSuffix(strings.TrimSpace(string(out)), " <nil>")), &f) != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for _, l := range doctor.Examine(f).Lines {
			switch {
			case l.Check == "mode nftables" || l.Check == "other proxies" || l.Check == "firewalls" || l.Check == "privileges":
				if l.Level != doctor.Skipped || l.Do == "" {
					t.Errorf("%+v", l)
				}
			case l.Check == "cgroups" && l.Level != doctor.OK:
				t.Errorf("%+v", l)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
