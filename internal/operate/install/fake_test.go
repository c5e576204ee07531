package install

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/fairway-net/fairway/internal/kube/objects"
)

// A fakeAPI keeps objects in memory and runs pods at once: each workload is ready as soon as
// it is written. Its Apply merges maps and replaces lists, which is enough for one writer.
type fakeAPI struct {
	t       *testing.T
	objects []*unstructured.Unstructured
	writes  int
	failAt  int // this write, and each one after it, fails; 0: none
	version int
	wrote   func() // is called after each write; nil: nobody
}

var errCut = errors.New("cut off")

func newFake(t *testing.T, manifest string) *fakeAPI {
	t.Helper()
	f := &fakeAPI{t: t}
	for doc := range strings.SplitSeq(manifest, "\n---\n") {
		data, err := yaml.YAMLToJSON([]byte(doc))
		if err != nil {
			t.Fatal(err)
		}
		if string(data) == "null" {
			continue
		}
		o := &unstructured.Unstructured{}
		if err := utilyaml.Unmarshal(data, &o.Object); err != nil {
			t.Fatal(err)
		}
		f.put(o)
	}
	return f
}

func (f *fakeAPI) Host() string                            { return "https://127.0.0.1:6443" }
func (f *fakeAPI) Version(context.Context) (string, error) { return "v1.37.1", nil }
func (f *fakeAPI) find(r objects.Ref) int {
	return slices.IndexFunc(f.objects, func(o *unstructured.Unstructured) bool { return r.Same(objects.RefOf(o)) })
}

func (f *fakeAPI) put(o *unstructured.Unstructured) {
	f.version++
	o.SetResourceVersion(strconv.Itoa(f.version))
	run(o, int64(f.version))
	if at := f.find(objects.RefOf(o)); at >= 0 {
		f.objects[at] = o
	} else {
		f.objects = append(f.objects, o)
	}
	if f.wrote != nil {
		f.wrote()
	}
}

// run makes the status of a workload what it is when all pods are ready.
func run(o *unstructured.Unstructured, generation int64) {
	wanted := int64(1)
	switch o.GetKind() {
	case "DaemonSet":
		nodes, _, _ := unstructured.NestedStringMap(o.Object, "spec", "template", "spec", "nodeSelector")
		if nodes[parked] != "" {
			wanted = 0
		}
	case "Deployment":
		wanted, _, _ = unstructured.NestedInt64(o.Object, "spec", "replicas")
	default:
		return
	}
	o.SetGeneration(generation)
	o.Object["status"] = map[string]any{
		"observedGeneration": generation, "desiredNumberScheduled": wanted, "updatedNumberScheduled": wanted, "numberReady": wanted,
		"replicas": wanted, "updatedReplicas": wanted, "readyReplicas": wanted,
	}
}

// write counts a write, and cuts the connection at the one that is chosen.
func (f *fakeAPI) write() error {
	f.writes++
	if f.failAt > 0 && f.writes >= f.failAt {
		return errCut
	}
	return nil
}

func (f *fakeAPI) Get(_ context.Context, r objects.Ref) (*unstructured.Unstructured, error) {
	if at := f.find(r); at >= 0 {
		return f.objects[at].DeepCopy(), nil
	}
	return nil, nil
}

func (f *fakeAPI) List(_ context.Context, apiVersion, kind, namespace, selector string) (all []unstructured.Unstructured, err error) {
	s, err := labels.Parse(selector)
	if err != nil {
		return nil, err
	}
	for _, o := range f.objects {
		if o.GetAPIVersion() == apiVersion && o.GetKind() == kind && (namespace == "" || o.GetNamespace() == namespace) && s.Matches(labels.Set(o.GetLabels())) {
			all = append(all, *o.DeepCopy())
		}
	}
	return all, nil
}

func (f *fakeAPI) Apply(ctx context.Context, o *unstructured.Unstructured, dryRun bool) (*unstructured.Unstructured, error) {
	have, _ := f.Get(ctx, objects.RefOf(o))
	if have == nil {
		have = &unstructured.Unstructured{Object: map[string]any{}}
	}
	merge(have.Object, o.DeepCopy().Object)
	if dryRun {
		return have, nil
	}
	if err := f.write(); err != nil {
		return nil, err
	}
	f.put(have)
	return have.DeepCopy(), nil
}

func (f *fakeAPI) Put(ctx context.Context, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	have, _ := f.Get(ctx, objects.RefOf(o))
	if have != nil && have.GetResourceVersion() != o.GetResourceVersion() {
		return nil, apierrors.NewConflict(schema.GroupResource{}, o.GetName(), errors.New("another version"))
	}
	if err := f.write(); err != nil {
		return nil, err
	}
	c := o.DeepCopy()
	f.put(c)
	return c.DeepCopy(), nil
}

func (f *fakeAPI) Patch(ctx context.Context, r objects.Ref, patch []byte) error {
	have, _ := f.Get(ctx, r)
	if have == nil {
		return fmt.Errorf("patch %s: not found", r)
	}
	if err := f.write(); err != nil {
		return err
	}
	var p map[string]any
	if err := utilyaml.Unmarshal(patch, &p); err != nil {
		return err
	}
	merge(have.Object, p)
	f.put(have)
	return nil
}

func (f *fakeAPI) Delete(_ context.Context, r objects.Ref) error {
	if err := f.write(); err != nil {
		return err
	}
	if at := f.find(r); at >= 0 {
		f.objects = slices.Delete(f.objects, at, at+1)
	}
	if f.wrote != nil {
		f.wrote()
	}
	return nil
}

// merge is a JSON merge patch.
func merge(into, from map[string]any) {
	for key, value := range from {
		fields, ok := value.(map[string]any)
		if value == nil {
			delete(into, key)
			continue
		}
		if !ok {
			into[key] = value
			continue
		}
		have, ok := into[key].(map[string]any)
		if !ok {
			have = map[string]any{}
		}
		merge(have, fields)
		into[key] = have
	}
}

// text is all objects, without what each write changes.
func (f *fakeAPI) text() string {
	var all []string
	for _, o := range f.objects {
		data, err := yaml.Marshal(visible(o))
		if err != nil {
			f.t.Fatal(err)
		}
		all = append(all, objects.RefOf(o).String()+"\n"+string(data))
	}
	slices.Sort(all)
	return strings.Join(all, "")
}
