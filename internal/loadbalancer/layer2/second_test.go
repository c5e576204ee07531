package layer2

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
)

// TestSecondSpeaker: a second speaker on a node ends without touching the rules of the first, also if it does not know
// the first one's lock. The node keeps its addresses.
func TestSecondSpeaker(t *testing.T) {
	l := newLAN(t, 3)
	best := l.best(vips[0])
	l.until(vips[0], best)
	fence := func() (handle uint64) {
		t.Helper()
		must(t, l.nodes[best].Do(func() (err error) {
			var r nft.Reader
			defer r.Close()
			var there bool
			if handle, there, err = r.Table(t.Context(), nft.Netdev, numbers.TableFence); !there {
				t.Error("there is no fence")
			}
			return err
		}))
		return handle
	}
	first := fence()
	w := l.world
	w.Self = l.nodes[best].Name
	text, err := json.Marshal(w)
	must(t, err)
	second := exec.Command(os.Args[0])
	second.Env = append(os.Environ(), helperEnv+"="+string(text))
	var out []byte
	must(t, l.nodes[best].Do(func() error { out, err = second.CombinedOutput(); return nil }))
	if err == nil || !strings.Contains(string(out), "another speaker, or another program, has UDP port") {
		t.Errorf("the second speaker: %v, %s", err, out)
	}
	if now := fence(); now != first {
		t.Errorf("the fence has the handle %d, and had %d: the second speaker made it again", now, first)
	}
	l.until(vips[0], best)
	t.Log(l.tape.Check(t), "changes of owner")
}
