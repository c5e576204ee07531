package nftables

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"testing"

	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/testing/policytest"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// The program has as many rules as damaged expects.
func TestRuleSum(t *testing.T) {
	n := testnet.NewNamespace(t, "node")
	err := n.Do(func() error {
		p := New()
		defer p.Close()
		if _, err := p.Adopt(t.Context()); err != nil {
			return err
		}
		damaged, err := p.damaged(t.Context())
		if damaged {
			t.Error("a table that was just loaded counts as damaged")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Whatever write fails, the next Sync, or another agent, makes the kernel what it should be.
func TestFaults(t *testing.T) {
	w := policytest.New(testnet.Random(t))
	c := networkpolicy.New("here")
	for range 60 {
		w.Step(c)
	}
	n := testnet.NewNamespace(t, "node")
	err := n.Do(func() error {
		first, changes := c.Compile()
		table := New()
		defer table.Close()
		if _, err := table.Sync(t.Context(), first, changes); err != nil {
			return err
		}
		c.Take()
		for step := range 40 {
			for range 5 {
				w.Step(c)
			}
			want, changes := c.Compile()
			writes := 0
			table.FailWrites(func() error {
				if writes++; writes > step%4 {
					return errors.New("an injected fault")
				}
				return nil
			})
			if step%3 == 0 {
				table.synced = false // as after a change by another program
			}
			_, failed := table.Sync(t.Context(), want, changes)
			table.FailWrites(nil)
			if failed == nil {
				c.Take()
				_, changes = c.Compile()
			}
			if step%2 == 0 {
				table.Close()
				table = New()
			}
			if _, err := table.Sync(t.Context(), want, changes); err != nil {
				return err
			}
			c.Take()
			again := New()
			written, err := again.Sync(t.Context(), want, nil)
			again.Close()
			if err != nil || written > 0 {
				t.Errorf("step %d: another agent wrote %d elements: %v", step, written, err)
			}
		}
		return table.Delete(t.Context())
	})
	if err != nil {
		t.Fatal(err)
	}
}

// nft reads its own listing of the program again. The switch to another version keeps the old rules in that form.
func TestListing(t *testing.T) {
	for _, reject := range []bool{false, true} {
		n, other := testnet.NewNamespace(t, "node"), testnet.NewNamespace(t, "other")
		var listing []byte
		err := n.Do(func() (err error) {
			p := New()
			defer p.Close()
			p.Reject = reject
			if _, err := p.Adopt(t.Context()); err != nil {
				return err
			}
			listing, err = exec.Command("nft", "list", "ruleset").Output()
			return err
		})
		if err == nil {
			err = other.Do(func() error {
				c := exec.Command("nft", "-f", "-")
				c.Stdin = bytes.NewReader(listing)
				if out, err := c.CombinedOutput(); err != nil {
					return fmt.Errorf("%w: %s", err, out)
				}
				return nil
			})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
