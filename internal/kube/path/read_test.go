package path

import (
	"bytes"
	"os"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/service"
)

// The objects of the API server and those of manifests make the same cluster.
func TestReadAsParse(t *testing.T) {
	base, err := os.ReadFile("../../path/testdata/base.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var parsed Objects
	if err := parsed.Parse(bytes.NewReader(base), "default"); err != nil {
		t.Fatal(err)
	}
	var all []runtime.Object
	for i := range parsed.Nodes {
		all = append(all, &parsed.Nodes[i])
	}
	for i := range parsed.Pods {
		all = append(all, &parsed.Pods[i])
	}
	for i := range parsed.Ranges {
		all = append(all, &parsed.Ranges[i])
	}
	read, err := Read(t.Context(), fake.NewClientset(all...), nil)
	if err != nil {
		t.Fatal(err)
	}
	facts := func(kube.Node) service.Node { return service.Node{} }
	a, b := parsed.Cluster(facts), read.Cluster(facts)
	if len(a.Nodes) != 3 || len(a.Pods) != 1 || len(b.Nodes) != 3 || len(b.Pods) != 1 || len(b.Nodes["node-1"].Facts.Settings.ServiceCIDRs) != 1 {
		t.Errorf("parsed %d nodes and %d pods, read %d and %d", len(a.Nodes), len(a.Pods), len(b.Nodes), len(b.Pods))
	}
}

// FuzzParse: manifests come from other people. None makes a panic.
func FuzzParse(f *testing.F) {
	base, err := os.ReadFile("../../path/testdata/base.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(base)
	f.Add([]byte("items: [7, {kind: Service}]\n---\nkind: EndpointSlice\nports: [{}]\n"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		var o Objects
		if o.Parse(bytes.NewReader(data), "default") == nil {
			o.Cluster(func(kube.Node) service.Node { return service.Node{} })
		}
	})
}
