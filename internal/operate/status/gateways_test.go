package status

import (
	"testing"

	"github.com/fairway-net/fairway/internal/kube"
)

// TestGateways: the overview counts the gateways, and says what stops them.
func TestGateways(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*kube.Parts)
		level  Level
	}{
		"all work":      {func(*kube.Parts) {}, OK},
		"one is absent": {func(p *kube.Parts) { p.DaemonSets["fairway-gateway"].Available = 2 }, Attention},
		"no controller": {func(p *kube.Parts) { delete(p.Deployments, "fairway-controller") }, Attention},
	} {
		p, nodes := wellParts()
		p.DaemonSets["fairway-gateway"] = &kube.Workload{Name: "fairway-gateway", Wanted: 3, Available: 3, Command: []string{"fairway", "gateway"}}
		c.change(p)
		var found []Part
		for _, part := range JudgeParts(p, nodes, now) {
			if part.Name == "gateways" {
				found = append(found, part)
			}
		}
		if len(found) != 1 || found[0].Level != c.level || (found[0].Do == "") != (c.level == OK) {
			t.Errorf("%s: %+v, want %s", name, found, c.level)
		}
	}
}
