package userspace

import (
	"fmt"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/service"
)

// Explain implements nftset.State. It does not name the listener, which is in this process.
func (h *kernelState) Explain(k service.Key) (all []datapath.Object, err error) {
	table, err := h.table()
	if err != nil {
		return nil, err
	}
	for f := range table.Frontends() {
		if f.Key() != k {
			continue
		}
		key := datapath.FrontKey(k)
		for _, e := range render(f) {
			o := datapath.Object{Kind: "set element", Name: "inet " + tableName + " " + e.set.Name(e.is4), Text: key}
			if e.comment != "" {
				o.Text += fmt.Sprintf(" comment %q", e.comment)
			}
			all = append(all, o)
		}
		for i, r := range [...]*service.Route{f.Internal, f.External} {
			for _, e := range r.Endpoints {
				if i == 0 || f.External != f.Internal {
					all = append(all, datapath.Object{Kind: "endpoint", Name: [...]string{"internal", "external"}[i], Text: e.String()})
				}
			}
		}
	}
	return all, nil
}
