package node

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// DefaultConfDir is the directory in which container runtimes look for a network configuration.
const DefaultConfDir = "/etc/cni/net.d"

// ConfigsBefore returns the network configurations in a directory that a runtime prefers to Fairway's: it uses the first file
// by name. Multus is not returned, because it passes pods on to the next configuration.
func ConfigsBefore(dir string) (names []string) {
	all, err := os.ReadDir(dir) // sorted by name
	if err != nil {
		return nil // the directory does not exist, so the runtime has no configuration
	}
	for _, e := range all {
		name := e.Name()
		if name >= configName {
			break
		}
		if slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(name)) && !strings.Contains(name, "multus") {
			names = append(names, name)
		}
	}
	return names
}

// configOrder returns a problem of this node if a runtime does not use Fairway's configuration.
func (n *Network) configOrder(node string) []plan.Problem {
	before := ConfigsBefore(n.CNIConfDir)
	if len(before) == 0 {
		return nil
	}
	return []plan.Problem{{Node: node, Reason: plan.ReasonConfigOrder, Message: fmt.Sprintf(
		"the container runtime uses %s, which comes before %s by its name: Fairway connects no new pod of node %s [remove the other CNI plugin, then delete the file and the pods that it connected]",
		filepath.Join(n.CNIConfDir, before[0]), configName, node)}}
}
