// Package chart makes the Helm chart from the objects that `fairway install` applies, so that the two cannot differ.
//
//	deploy/ ─ install.Render ─┬ without components ┐            ┌ templates/*.yaml
//	                          ├ with one, each     ├─ merge ────┤ values.yaml, values.schema.json
//	                          └ with DNS, …        ┘            └ README.md, NOTES.txt
//
// The parts that all renderings share are written once. A part that only some of them have becomes a condition on the
// values that select it. Fields that operators change become values, with the defaults of deploy/. The templates
// contain text, conditions and values only, and a component that a condition cannot express is an error. test/chart
// checks with Helm that the chart renders to the objects of `fairway install`, for each component and for combinations.
package chart
