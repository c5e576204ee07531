//go:build uml

package ipvs_test

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/fairway-net/fairway/internal/testing/conformance"
)

// TestUpgrade: the table and the virtual servers of release 16d7bce are taken over, and
// given back.
func TestUpgrade(t *testing.T) {
	rules, err := os.ReadFile("testdata/16d7bce.nft")
	if err != nil {
		t.Fatal(err)
	}
	conformance.Upgrade(t, open, conformance.Former{Table: "fairway-ipvs", Rules: string(rules), TakesBack: true, Prepare: func() error {
		servers, err := os.Open("testdata/16d7bce.ipvs")
		if err != nil {
			return err
		}
		defer servers.Close()
		restore := exec.Command("ipvsadm", "-R")
		restore.Stdin = servers
		for _, cmd := range []*exec.Cmd{
			restore, exec.Command("sysctl", "-q", "-w", "net.ipv4.vs.conntrack=1", "net.ipv4.vs.conn_reuse_mode=1"),
			exec.Command("ip", "route", "add", "local", "250.64.0.0/10", "dev", "lo", "table", "local", "proto", "70"),
			exec.Command("ip", "-6", "route", "add", "local", "fd66:6169:7277:6179::/64", "dev", "lo", "table", "local", "proto", "70"),
		} {
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%v: %w: %s", cmd.Args, err, out)
			}
		}
		return nil
	}})
}
