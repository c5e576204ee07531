package install

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/fairway-net/fairway/internal/kube/objects"
)

// inventoryRef names the ConfigMap with the record of all changes.
var inventoryRef = objects.Ref{APIVersion: "v1", Kind: "ConfigMap", Namespace: kubeSystem, Name: "fairway-inventory"}

// keepRevisions is the number of revisions that are kept. A revision takes about 5 kB, and the API server accepts 1 MB.
const keepRevisions = 10

// A revision is a set of objects that was applied, or was about to be applied.
type revision struct {
	Number   int       `json:"number"`
	Time     time.Time `json:"time"`
	Program  string    `json:"program"` // version of the program that applied it
	What     string    `json:"what"`    // the command: install, upgrade, rollback to 3
	Done     bool      `json:"done"`    // false: the run is not finished
	Settings Settings  `json:"settings"`

	objects []*unstructured.Unstructured
}

// An inventory is the record that is needed to go back.
type inventory struct {
	Revisions []*revision `json:"revisions"`
	// KubeProxy reports whether its DaemonSet has a nodeSelector that no node has.
	KubeProxy bool `json:"kubeProxy,omitempty"`
	// CoreDNS is the number of replicas of the Deployment coredns before it was scaled to 0.
	CoreDNS int32 `json:"coreDNS,omitempty"`

	version string // resourceVersion of the ConfigMap
}

// loadInventory reads the inventory. It returns an empty one if there is none.
func loadInventory(ctx context.Context, api API) (*inventory, error) {
	o, err := api.Get(ctx, inventoryRef)
	if err != nil {
		return nil, err
	}
	inv := &inventory{}
	if o == nil {
		return inv, nil
	}
	inv.version = o.GetResourceVersion()
	text, _, _ := unstructured.NestedString(o.Object, "data", "inventory.yaml")
	if err := yaml.Unmarshal([]byte(text), inv); err != nil {
		return nil, fmt.Errorf("read %s: %w", inventoryRef, err)
	}
	for _, r := range inv.Revisions {
		packed, _, _ := unstructured.NestedString(o.Object, "binaryData", r.key())
		if r.objects, err = unpack(packed); err != nil {
			return nil, fmt.Errorf("read revision %d of %s: %w", r.Number, inventoryRef, err)
		}
	}
	return inv, nil
}

func (r *revision) key() string { return fmt.Sprintf("revision-%d.json.gz", r.Number) }

// save writes the inventory. It fails if another run has written it since.
func (inv *inventory) save(ctx context.Context, api API) error {
	text, err := yaml.Marshal(inv)
	if err != nil {
		return fmt.Errorf("encode the inventory: %w", err)
	}
	packed := map[string]any{}
	for _, r := range inv.Revisions {
		if packed[r.key()], err = pack(r.objects); err != nil {
			return err
		}
	}
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{
			"name": inventoryRef.Name, "namespace": kubeSystem,
			"labels": map[string]any{"app.kubernetes.io/name": inventoryRef.Name, "app.kubernetes.io/part-of": fairway},
		},
		"data":       map[string]any{"inventory.yaml": string(text)},
		"binaryData": packed,
	}}
	o.SetResourceVersion(inv.version)
	written, err := api.Put(ctx, o)
	if objects.IsConflict(err) {
		return fmt.Errorf("another fairway install, upgrade, rollback or uninstall is at work [wait for it, and try again]")
	}
	if err == nil {
		inv.version = written.GetResourceVersion()
	}
	return err
}

func pack(all []*unstructured.Unstructured) (string, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	err := errors.Join(json.NewEncoder(z).Encode(all), z.Close())
	if err != nil {
		return "", fmt.Errorf("encode a revision: %w", err)
	}
	return base64.StdEncoding.EncodeToString(b.Bytes()), nil
}

func unpack(text string) (all []*unstructured.Unstructured, err error) {
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, err
	}
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	const most = 16 << 20 // larger than any set of manifests
	if data, err = io.ReadAll(io.LimitReader(z, most)); err != nil {
		return nil, err
	}
	return all, json.Unmarshal(data, &all)
}

// current returns the newest revision, finished or not, or nil.
func (inv *inventory) current() *revision {
	if len(inv.Revisions) == 0 {
		return nil
	}
	return inv.Revisions[len(inv.Revisions)-1]
}

// former returns the revision with this number. For 0 it returns the last finished one before the current one.
func (inv *inventory) former(number int) (*revision, error) {
	for _, r := range slices.Backward(inv.Revisions) {
		switch {
		case number == 0 && r != inv.current() && r.Done, number != 0 && r.Number == number:
			return r, nil
		}
	}
	if number == 0 {
		return nil, errors.New("there is no former revision to go back to [fairway uninstall removes this one]")
	}
	return nil, fmt.Errorf("there is no revision %d [fairway rollback --list shows them]", number)
}

// add starts a revision.
func (inv *inventory) add(r *revision) {
	r.Number = 1
	if c := inv.current(); c != nil {
		r.Number = c.Number + 1
	}
	inv.Revisions = append(inv.Revisions, r)
	if extra := len(inv.Revisions) - keepRevisions; extra > 0 {
		inv.Revisions = inv.Revisions[extra:]
	}
}

// all returns every object of every revision.
func (inv *inventory) all() (refs []objects.Ref) {
	for _, r := range inv.Revisions {
		for _, o := range r.objects {
			ref := objects.RefOf(o)
			if !slices.ContainsFunc(refs, ref.Same) {
				refs = append(refs, ref)
			}
		}
	}
	return refs
}

// kept lists kinds that are never deleted, because other programs' objects would go with them.
var kept = []string{"CustomResourceDefinition", "Namespace"}

// gone returns the objects of earlier revisions that are not in wanted, the last one first.
func (inv *inventory) gone(wanted []*unstructured.Unstructured) (refs []objects.Ref) {
	for _, r := range slices.Backward(inv.all()) {
		if !slices.Contains(kept, r.Kind) && !slices.ContainsFunc(wanted, func(o *unstructured.Unstructured) bool { return r.Same(objects.RefOf(o)) }) {
			refs = append(refs, r)
		}
	}
	return refs
}
