package iptables

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/kernel/xtables"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// kubeProxyWrites does to our chains what kube-proxy does when it starts. It empties the shared chains, removes unknown
// chains of Services, and leaves a canary.
const kubeProxyWrites = `*filter
:KUBE-SERVICES - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]
-A KUBE-SERVICES -d 10.96.0.9/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-AAAAAAAAAAAAAAAA
COMMIT
`

// TestKubeProxy: chains that kube-proxy has written again belong to kube-proxy. Chains that kube-proxy left belong to
// Fairway after Fairway has written them.
func TestKubeProxy(t *testing.T) {
	for _, v := range []Variant{NFT, Legacy} {
		t.Run(v.String(), func(t *testing.T) {
			err := testnet.NewNamespace(t, "node").Do(func() error {
				d, err := New(Config{Variant: v})
				if err != nil {
					return err
				}
				defer d.Close()
				found := func(when string, want bool) {
					if held, err := d.Adopt(t.Context()); held.Found != want || err != nil {
						t.Errorf("%s: found %v (%v), want %v", when, held.Found, err, want)
					}
				}
				kubeProxy(t, v)
				found("kube-proxy alone", false)
				settings := service.Settings{Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}
				if _, err := d.Sync(t.Context(), service.NewTable(settings, nil)); err != nil {
					return err
				}
				found("after our Sync", true)
				if text := save(t, v); strings.Contains(text, "KUBE-SVC-AAAA") {
					t.Errorf("our Sync left kube-proxy's:\n%s", text)
				}
				kubeProxy(t, v)
				if err := d.Cleanup(t.Context()); err != nil {
					return err
				}
				found("after Cleanup", false)
				text := save(t, v)
				for _, want := range []string{"-A KUBE-SERVICES -d 10.96.0.9/32", "-A PREROUTING", "-j KUBE-PROXY-FIREWALL"} {
					if !strings.Contains(text, want) {
						t.Errorf("Cleanup took kube-proxy's %q:\n%s", want, text)
					}
				}
				for _, not := range []string{"FAIRWAY", "KUBE-EXT-OFF-CLUSTER"} {
					if strings.Contains(text, not) {
						t.Errorf("Cleanup left %s:\n%s", not, text)
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

func kubeProxy(t *testing.T, v Variant) {
	t.Helper()
	cmd := exec.Command(xtables.Program(v, true, "restore"), "--noflush")
	cmd.Stdin = strings.NewReader(kubeProxyWrites)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("write as kube-proxy does: %v: %s", err, out)
	}
}

func save(t *testing.T, v Variant) string {
	t.Helper()
	out, err := exec.Command(xtables.Program(v, true, "save")).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
