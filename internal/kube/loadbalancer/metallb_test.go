package loadbalancer

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/yaml"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube"
)

var update = flag.Bool("update", false, "write the golden files")

// convertAny returns the conversion of an object of metallb.io, one line for each field.
func convertAny(o *unstructured.Unstructured) string {
	var v any
	extra := ""
	switch o.GetKind() {
	case "IPAddressPool":
		p := convertPool(o)
		if p.Allocation != nil {
			extra = fmt.Sprintf("%+v", *p.Allocation)
			p.Allocation = nil
		}
		v = *p
	case "L2Advertisement":
		v = *convertL2Advertisement(o)
	case "BGPAdvertisement":
		v = *convertBGPAdvertisement(o)
	case "BGPPeer":
		v = *convertBGPPeer(o)
	case "BFDProfile":
		v = *convertBFDProfile(o)
	case "Community":
		v = *convertCommunity(o)
	default:
		return "no kind of ours: " + o.GetKind()
	}
	return o.GetKind() + " " + fmt.Sprintf("%+v", v) + extra + "\n"
}

// golden passes each document of an archive's YAML files to render. The next file in the archive has the expected
// result.
func golden(t *testing.T, archive string, render func(file, doc string) string) {
	t.Helper()
	path := filepath.Join("testdata", archive)
	all, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(all.Files); i += 2 {
		in, want := all.Files[i], &all.Files[i+1]
		var got strings.Builder
		for doc := range strings.SplitSeq(string(in.Data), "---\n") {
			got.WriteString(render(in.Name, doc))
		}
		if *update {
			want.Data = []byte(got.String())
		} else if got.String() != string(want.Data) {
			t.Errorf("%s is read as\n%swant\n%s", in.Name, got.String(), want.Data)
		}
	}
	if *update {
		if err := os.WriteFile(path, txtar.Format(all), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestConvertMetallb converts the objects of metallb.io.
func TestConvertMetallb(t *testing.T) {
	golden(t, "metallb.txtar", func(file, doc string) string {
		var o unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(doc), &o.Object); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		return convertAny(&o)
	})
}

// TestAnnouncements: the objects of one namespace arrive, of all kinds. Objects of other namespaces do not.
func TestAnnouncements(t *testing.T) {
	lists := map[schema.GroupVersionResource]string{}
	var objects []runtime.Object
	for resource, kind := range map[string]string{
		"ipaddresspools": "IPAddressPool", "l2advertisements": "L2Advertisement", "bgpadvertisements": "BGPAdvertisement",
		"bgppeers": "BGPPeer", "bfdprofiles": "BFDProfile", "communities": "Community",
	} {
		version := "v1beta1"
		if kind == "BGPPeer" {
			version = "v1beta2"
		}
		lists[schema.GroupVersionResource{Group: "metallb.io", Version: version, Resource: resource}] = kind + "List"
		for _, namespace := range []string{"metallb-system", "tenant"} {
			objects = append(objects, &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "metallb.io/" + version, "kind": kind,
				"metadata": map[string]any{"name": strings.ToLower(kind), "namespace": namespace},
			}})
		}
	}
	custom := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists, objects...)
	s := kube.New(kube.Config{Log: slog.New(slog.DiscardHandler), Client: fake.NewClientset(), NodeName: "node-1", Custom: custom, LoadBalancerNamespace: "metallb-system"})
	sub := SubscribeAnnouncements(s, "test")
	runUntilEnd(t, s)
	waitFor(t, sub.Synced(), "Synced")
	var want []api.Name
	for _, name := range []string{"bfdprofile", "bgpadvertisement", "bgppeer", "community", "ipaddresspool", "l2advertisement"} {
		want = append(want, api.Name{Namespace: "metallb-system", Name: name})
	}
	if got := sub.Take(); !slices.Equal(got, want) {
		t.Errorf("took %v, want %v", got, want)
	}
	for kind, n := range map[string]int{
		"pools": len(sub.Pools()), "l2": len(sub.L2Advertisements()), "bgp": len(sub.BGPAdvertisements()),
		"peers": len(sub.BGPPeers()), "bfd": len(sub.BFDProfiles()), "communities": len(sub.Communities()),
	} {
		if n != 1 {
			t.Errorf("%d %s, want 1", n, kind)
		}
	}
	pools := schema.GroupVersionResource{Group: "metallb.io", Version: "v1beta1", Resource: "ipaddresspools"}
	if err := custom.Resource(pools).Namespace("metallb-system").Delete(t.Context(), "ipaddresspool", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, sub.Dirty(), "the pool's end")
}
